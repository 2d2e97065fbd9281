#!/usr/bin/env bash
# test.bash PYTHON [MARKS]    Runs the tests with that Python, or those of them with these marks.
#
# Most wait more than they compute: several run at a time, then those that must be alone. On a shared machine a test
# can miss its moment: those that failed are tried again, alone. What passes only then is named; unless
# tests/known_flaky.toml says why it may be, it has to pass five times in a row.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1
marks="not slow and not cluster and not browser${2:+ and $2}"

run_tests() {
    "$python" -m pytest "$@"
    local code=$?
    if [ "$code" -gt 1 ]; then
        exit "$code" # not all of them have run
    fi
    return "$code"
}

failed=0
run_tests -m "$marks and not alone" --cache-clear --numprocesses "$((2 * $(nproc)))" --dist loadfile || failed=1
run_tests -m "$marks and alone" || failed=1
if [ "$failed" -eq 1 ]; then
    "$python" scripts/second_tries.py tests/known_flaky.toml -m "$marks"
fi
