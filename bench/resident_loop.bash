#!/usr/bin/env bash
# A resident shell: for every line on descriptor 3 run the file `command`, then report $? on descriptor 4.
# Its argument is a directory with the file and the FIFOs `out` and `err`.

while IFS= read -r -u 3 _; do
    # shellcheck source=/dev/null
    . "$1/command" >"$1/out" 2>"$1/err" </dev/null 3<&- 4>&-
    printf '%d\n' "$?" >&4
done
