"""Inside, the things people do every day work."""

import pytest

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio

POOL = """
from multiprocessing import Pool
def square(x): return x * x
if __name__ == "__main__":
    with Pool(2) as pool: print(sum(pool.map(square, range(100))))
"""


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("echo 'a b c' | awk '{print $2}'", "b\n"),
        ("echo ~; cd ~; pwd", "/home/user\n/home/user\n"),
        ("whoami; id -un; id -gn", "user\nuser\nuser\n"),
        ("f=$(mktemp); echo x > $f; cat $f; echo ${f%/*}", "x\n/tmp\n"),
        ("f=$(TMPDIR=/var/tmp mktemp); echo x > $f; cat $f", "x\n"),
        ("mkdir /data && echo x > /data/f && cat /data/f", "x\n"),
        ("locale charmap 2>&1; printf 'é' | wc -m", "UTF-8\n1\n"),
        ("python3 -c 'import sys, locale; print(sys.stdout.encoding, \"é\")'", "utf-8 é\n"),
        ("python3 -c 'import ssl, sqlite3, ctypes, curses; print(1)'", "1\n"),
        ("date -u -d @0 +%F; TZ=UTC date -d @0 +%H", "1970-01-01\n00\n"),
        ("echo '#!/bin/sh\necho script' > s; chmod +x s; ./s; cp s /tmp/s; /tmp/s", "script\nscript\n"),
        (
            "cd ~; mkdir -p .local/bin; printf '#!/bin/sh\\necho mine' > .local/bin/t; chmod +x .local/bin/t; t",
            "mine\n",
        ),
        ("seq 3 | xargs -P2 -n1 echo | sort | tr '\\n' ,", "1,2,3,"),
        ("tar cf - /etc/hostname 2>/tmp/e | tar xf - -O", "cove\n"),
        ("sleep 100 & kill $!; wait $!; echo $?", "143\n"),
        ("getent hosts localhost | head -1 | awk '{print $2}'", "localhost\n"),
        ("cat <<< here; cat < <(echo process)", "here\nprocess\n"),
        ("test -c /dev/null -a -c /dev/urandom -a -c /dev/zero && head -c 4 /dev/urandom | wc -c", "4\n"),
        ("python3 -c 'import os; m, s = os.openpty(); print(os.ttyname(s)[:8])'", "/dev/pts\n"),
        ("echo $(( $(nproc) > 0 ))", "1\n"),
    ],
)
async def test_a_daily_tool_works(command: str, stdout: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(command, timeout=60)
    assert result.stdout == stdout, result.stderr


async def test_git_commits() -> None:
    async with AsyncSandbox.create() as sandbox:
        if (await sandbox.exec("command -v git")).exit_code:
            pytest.skip("needs git on this machine")
        result = await sandbox.exec(
            "set -e; git init -q r; cd r; git config user.email a@b; git config user.name n; echo x > f; git add f; "
            "git commit -qm first; git log --format=%s; git status --porcelain",
            timeout=60,
        )
    assert (result.stdout, result.exit_code) == ("first\n", 0)


async def test_a_virtual_environment_is_made_without_a_network() -> None:
    async with AsyncSandbox.create() as sandbox:
        if (await sandbox.exec("python3 -c 'import ensurepip'")).exit_code:
            pytest.skip("needs the package python3-venv on this machine")
        command = "python3 -m venv v && v/bin/pip --version && v/bin/python -c 'print(6*7)'"
        result = await sandbox.exec(command, timeout=100)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("42\n")


async def test_multiprocessing_works() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("cat > pool.py; python3 pool.py", stdin=POOL, timeout=60)
    assert (result.stdout, result.exit_code) == ("328350\n", 0), result.stderr


THREADS = """
import threading
total = []
threads = [threading.Thread(target=total.append, args=(n,)) for n in range(50)]
for each in threads: each.start()
for each in threads: each.join()
print(sum(total))
"""
SQLITE = """
import sqlite3
connection = sqlite3.connect('d')
connection.execute('create table t (a)')
connection.execute('insert into t values (7)')
connection.commit()
print(connection.execute('select a from t').fetchone()[0])
"""


@pytest.mark.parametrize(
    ("program", "command", "stdout"),
    [
        ("python3", ["python3", "-c", THREADS], "1225\n"),
        ("python3", ["python3", "-c", SQLITE], "7\n"),
        ("gcc", "echo 'int main(void) { return 3; }' > a.c; gcc a.c -o a; ./a; echo $?", "3\n"),
        (
            "node",
            ["node", "-e", "const w = require('worker_threads'); console.log(6 * 7, w.isMainThread)"],
            "42 true\n",
        ),
        (
            "node",
            ["node", "-e", "console.log(require('child_process').execSync('echo child').toString())"],
            "child\n\n",
        ),
        ("npm", "npm init -y > /dev/null 2>&1; ls package.json", "package.json\n"),
        ("ssh", "ssh -V 2>&1 | grep -c OpenSSH; ssh-keygen -q -t ed25519 -N '' -f key; ls key.pub", "1\nkey.pub\n"),
        ("curl", "curl -s file:///etc/hostname", "cove\n"),
        ("perl", ["perl", "-e", "print 6 * 7"], "42"),
        ("make", "printf 'a:\\n\\t@echo made\\n' > Makefile; make", "made\n"),
        ("tmux", "tmux -V | cut -d ' ' -f 1", "tmux\n"),
    ],
)
async def test_a_program_works_under_the_filter(program: str, command: str | list[str], stdout: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        if (await sandbox.exec(["bash", "-c", f"command -v {program}"])).exit_code:
            pytest.skip(f"needs {program} on this machine")
        result = await sandbox.exec(command, timeout=100)
    assert result.stdout == stdout, result.stderr


async def test_files_last_from_call_to_call() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo 1 > /workspace/f; echo 2 > ~/f; echo 3 > /tmp/f; echo 4 > /f; echo 5 > /dev/shm/f")
        result = await sandbox.exec("cat /workspace/f ~/f /tmp/f /f /dev/shm/f")
    assert result.stdout.split() == ["1", "2", "3", "4", "5"]
