#!/usr/bin/env bash
# Runs the tests with the given Python. On a shared machine a test can miss its moment: those that failed get one
# more try, in a program of their own, and both tries are shown.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1
shift
"$python" -m pytest "$@" && exit
echo "Once more, only what has failed:"
"$python" -m pytest "$@" --last-failed --last-failed-no-failures none
