#!/usr/bin/env bash
# All tests but the integrations, in two halves side by side, since most of them wait: what mounts, starts programs or
# measures, and the rest. With arguments: one ordinary run of pytest with these.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -gt 0 ]; then
    exec .venv/bin/pytest --ignore=tests/integrations "$@"
fi

mounting=(tests/bench tests/cli tests/fuse tests/programs)
# These take as long as all the rest of their folder, and the halves are to end together.
others=(tests/fuse/test_killed_anywhere.py tests/fuse/test_outliving.py)
ignored=("${others[@]/#/--ignore=}")
for directory in tests/*/; do
    directory=${directory%/}
    case " ${mounting[*]} tests/integrations tests/rig tests/__pycache__ " in
        *" $directory "*) ;;
        *) others+=("$directory") ;;
    esac
done

output=$(mktemp)
# One cache of pytest is enough; two would write over each other.
.venv/bin/pytest -p no:cacheprovider "${others[@]}" > "$output" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null; rm -f "$output"' EXIT
.venv/bin/pytest "${mounting[@]}" "${ignored[@]}"
status=$?
wait "$other" || status=$?
cat "$output"
exit "$status"
