#!/usr/bin/env bash
# Installs the system packages that are missing, or says exactly which ones to install.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
is_fatal=0

if ! command -v bwrap >/dev/null; then
    missing+=(bubblewrap)
    is_fatal=1
fi
if ! bash scripts/python.bash --find >/dev/null; then
    missing+=(python3 python3-venv)
    is_fatal=1
fi
if [ "$(id -u)" -eq 0 ] && ! PYTHON=/usr/bin/python3 bash scripts/python.bash --find | grep -qx /usr/bin/python3; then
    missing+=(python3 python3-venv) # for the tests as a plain user, who cannot read a Python below root's home
fi
if ! command -v shellcheck >/dev/null; then
    missing+=(shellcheck)
fi
if ! command -v rclone >/dev/null; then
    missing+=(rclone fuse3) # for the tests of buckets
fi
if ! command -v docker-registry >/dev/null; then
    missing+=(docker-registry) # for the tests of pulls
fi
if ! [ -e /bin/busybox ]; then
    missing+=(busybox-static) # for the tests of images
fi

if ! command -v newuidmap >/dev/null; then
    missing+=(uidmap) # for the tests of subordinate users
fi
if ! command -v musl-gcc >/dev/null; then
    missing+=(musl-tools) # for the tests of images with another libc
fi

if ! command -v chromium >/dev/null; then
    missing+=(chromium) # for the tests of the console
fi

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi

as_root=(sudo -n)
if [ "$(id -u)" -eq 0 ]; then
    as_root=(env)
fi

if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
    echo "Installing ${missing[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        "${missing[@]}" </dev/null
    exit 0
fi

{
    echo "These packages are missing: ${missing[*]}"
    echo "Debian, Ubuntu:  sudo apt install ${missing[*]}"
    echo "Other systems have them under the same or similar names. Then run make again."
} >&2
exit "$is_fatal"
