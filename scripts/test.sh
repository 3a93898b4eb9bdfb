#!/usr/bin/env bash
# All tests but the integrations and the exhaustive ones, in two halves that take about the same time: what mounts or
# measures, and the rest with the programs that run on mounts. With arguments: one ordinary run of pytest with these.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=(-m "not exhaustive and not integration")
if [ $# -gt 0 ]; then
    exec .venv/bin/pytest --ignore=tests/integrations "${quick[@]}" "$@"
fi

mounting=(tests/bench tests/cli tests/fuse)
others=()
for directory in tests/*/; do
    directory=${directory%/}
    case " ${mounting[*]} tests/integrations tests/rig tests/__pycache__ " in
        *" $directory "*) ;;
        *) others+=("$directory") ;;
    esac
done
exec scripts/side_by_side.sh "${quick[@]}" "${mounting[@]}" -- "${quick[@]}" "${others[@]}"
