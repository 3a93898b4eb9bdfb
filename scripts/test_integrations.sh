#!/usr/bin/env bash
# The integrations, and beside them what is exhaustive. With arguments: one ordinary run of pytest with these.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -gt 0 ]; then
    exec .venv/bin/pytest -m "integration or exhaustive" "$@"
fi
exec scripts/side_by_side.sh tests/integrations tests/bench -m "integration or exhaustive" \
    -- --ignore=tests/integrations --ignore=tests/bench -m "integration or exhaustive"
