#!/usr/bin/env bash
# side_by_side.sh ARGUMENTS -- ARGUMENTS: two runs of pytest at once, since most tests wait. Shows the first as it goes, the
# second when both are over. The status is that of a run that failed.
set -uo pipefail

first=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    first+=("$1")
    shift
done
shift

output=$(mktemp)
# One cache of pytest is enough; two would write over each other.
.venv/bin/pytest -p no:cacheprovider "$@" > "$output" 2>&1 &
second=$!
trap 'kill "$second" 2>/dev/null; rm -f "$output"' EXIT
.venv/bin/pytest "${first[@]}"
status=$?
wait "$second" || status=$?
cat "$output"
exit "$status"
