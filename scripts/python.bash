#!/usr/bin/env bash
# python.bash --find       prints a Python that can make the virtual environment
# python.bash DIRECTORY    makes the environment there, with Cove; with --dev, also with what its development needs
set -euo pipefail

usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c "$usable" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if [ "$1" = --find ]; then
    find_python
    exit
fi

if ! python=$(find_python); then
    {
        echo "No Python 3.11 or newer with venv was found."
        echo "Debian 12, Ubuntu 24.04:  sudo apt install python3 python3-venv"
        echo "Ubuntu 22.04:             sudo apt install python3.11 python3.11-venv"
        echo "Elsewhere: install one and name it: make PYTHON=/path/to/python3 …"
    } >&2
    exit 1
fi

if ! "$1/bin/python" -c "$usable" >/dev/null 2>&1; then
    "$python" -m venv --clear "$1"
fi
what=.
if [ "${2:-}" = --dev ]; then
    what='.[dev]'
fi
echo "Installing Cove into $1${2:+, with what its development needs} ..."
"$1/bin/python" -m pip install -qq --disable-pip-version-check --editable "$what" </dev/null
