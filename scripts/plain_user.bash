#!/usr/bin/env bash
# As root: runs the tests that depend on rights once more as a user who owns nothing here. For anyone else there is
# nothing to do.
#
# That user can read neither root's home nor, often, this directory: the environment is built from the system's
# Python in a place everyone can read, and each run works on a copy of the project that belongs to the user.
set -euo pipefail
cd "$(dirname "$0")/.."

place=/var/cache/cove-tests

if [ "$(id -u)" -ne 0 ]; then
    exit 0
fi
if [ "${1:-}" = --clean ]; then
    rm -rf "$place"
    exit 0
fi

umask 022
mkdir -p "$place"
exec 9>"$place/lock"
flock 9

user=61000
while getent passwd "$user" >/dev/null; do
    user=$((user + 1))
done

copy_project() {
    rm -rf "${place:?}/project" "${place:?}/home"
    mkdir "$place/project" "$place/home"
    tar --create --exclude-vcs --exclude=./.venv --exclude=__pycache__ --exclude='.*_cache' . |
        tar --extract --no-same-owner --directory "$place/project"
}

prepare_environment() {
    local stamp
    stamp=$(sha256sum pyproject.toml | cut -d ' ' -f 1)
    if [ "$(cat "$place/stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    rm -f "$place/stamp"
    (cd "$place/project" && PYTHON=/usr/bin/python3 bash scripts/python.bash "$place/venv" --dev 9>&-)
    echo "$stamp" >"$place/stamp"
}

# What as_user is started by.
enter=()

as_user() {
    "${enter[@]}" env -i PATH="$place/venv/bin:/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 USER=cove-test LOGNAME=cove-test \
        HOME="$place/home" COVE_HOME="$place/home/cove" TMPDIR="$place/home" \
        COVE_PYTHON="${COVE_PYTHON:-${COVE_HOME:-/var/lib/cove}/python}" \
        setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@" 9>&-
}

# Gives the user a name and subordinate users, in a mount namespace of each command alone: /etc stays as it is.
give_subordinates() {
    local etc="$place/etc"
    rm -rf "$etc"
    mkdir "$etc"
    cp /etc/passwd "$etc/passwd"
    echo "cove-test:x:$user:$user::$place/home:/bin/sh" >>"$etc/passwd"
    echo cove-test:1000000000:65536 | tee "$etc/subuid" >"$etc/subgid"
    # shellcheck disable=SC2016  # the inner shell expands it
    enter=(unshare --mount --propagation private bash -c '
        etc=$1
        shift
        for name in passwd subuid subgid; do
            mount --bind "$etc/$name" "/etc/$name" || exit
        done
        exec "$@"' bash "$etc")
}

copy_project
prepare_environment
chown -R "$user:$user" "$place/project" "$place/home"
cd "$place/project"
if ! as_user python -c 'import cove'; then
    echo "The tests as a plain user need a Python that all users can read: apt install python3 python3-venv" >&2
    exit 1
fi
echo "As a plain user (uid $user):"
failed=0
as_user bash scripts/test.bash python "not pure" || failed=1

give_subordinates
if command -v newuidmap >/dev/null && "${enter[@]}" true 2>/dev/null; then
    echo "As a plain user with subordinate users:"
    as_user python -m pytest -m "not slow" --cache-clear --numprocesses "$((2 * $(nproc)))" --dist loadfile \
        tests/runtime/test_image_slices.py tests/runtime/test_image_users.py \
        tests/security/test_image_processes.py ||
        as_user python scripts/second_tries.py tests/known_flaky.toml -m "not slow" || failed=1
fi
exit "$failed"
