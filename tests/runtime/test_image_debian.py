"""Every surface in a sandbox on a Debian, as its root and as another user of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.debian_root import needs_debian, write_debian_root
from support.users import CAN_MAP_USERS
from support.viewers import watch

from cove import AsyncSandbox, Image, NetworkPolicy

pytestmark = [pytest.mark.anyio, needs_debian]

USERS = {"root": (0, "/root"), "www-data": (33, "/var/www")}

PACKAGE = """
set -e
mkdir -p /tmp/made/DEBIAN /tmp/made/usr/bin
printf 'Package: made\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@b.example>\\nDescription: made here\\n' \
    > /tmp/made/DEBIAN/control
printf '#!/bin/sh\\necho configured > /var/lib/made\\n' > /tmp/made/DEBIAN/postinst
printf '#!/bin/sh\\necho hello from a package\\n' > /tmp/made/usr/bin/made
chmod 755 /tmp/made/DEBIAN/postinst /tmp/made/usr/bin/made
dpkg-deb --build --root-owner-group /tmp/made /tmp/made.deb
dpkg -i /tmp/made.deb
useradd --create-home ann
"""


@pytest.fixture(scope="module")
def debian(cove_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = write_debian_root(tmp_path_factory.mktemp("debian") / "root.tar", "apt", "passwd", "python3")
    image = Image.load(root, name="debian-of-this-machine")
    root.unlink()
    yield image.name
    image.delete()


@pytest.mark.parametrize("user", USERS)
async def test_commands_sessions_terminals_code_and_files_are_those_of_the_user(debian: str, user: str) -> None:
    number, home = USERS[user]
    async with AsyncSandbox.create(image=debian, user=user) as sandbox:
        said = await sandbox.exec(
            "id -u; id -un; echo $HOME; cat /etc/debian_version; dpkg-query -W -f '${Version}' bash"
        )
        debian_version = Path("/etc/debian_version").read_text().strip()
        assert said.stdout.splitlines()[:4] == [str(number), user, home, debian_version]
        assert said.ok

        session = await sandbox.create_session()
        await session.exec("cd /usr/lib; x=kept; f() { echo in $PWD; }")
        assert (await session.exec("f; echo $x; readlink /proc/$$/exe")).stdout == "in /usr/lib\nkept\n/usr/bin/bash\n"

        terminal = await sandbox.terminal()
        async with watch(terminal) as viewer:
            await viewer.connection.write(b"echo $((40 + 2)) $(tty); exit 3\n")
            output, end = await viewer.until_exit()
        assert (b"42 /dev/pts/" in output, end.exit_code) == (True, 3)

        context = await sandbox.create_code_context()
        await context.run("import os, sys; x = 6")
        ran = await context.run("x * 7, os.getuid(), sys.executable")
        (info,) = await sandbox.list_code_contexts()
        assert (ran.text, info.interpreter) == (f"(42, {number}, '/usr/bin/python3')", "image")

        await sandbox.files.write("/workspace/made", b"by the API")
        found = await sandbox.exec(
            "stat -c '%u %s' /workspace/made; echo more >> /workspace/made; tail -c 5 /workspace/made"
        )
        assert found.stdout == f"{number} 10\nmore\n"
        assert (await sandbox.exec("touch /usr/bin/mine")).ok == (user == "root" or not CAN_MAP_USERS)


async def test_packages_and_users_that_root_adds_are_in_snapshots_and_in_no_other_sandbox(debian: str) -> None:
    async with AsyncSandbox.create(image=debian, user="root") as sandbox:
        done = await sandbox.exec(PACKAGE, timeout=120)
        assert done.ok, done.stderr
        shown = "made; cat /var/lib/made; dpkg-query -W made; getent passwd ann | cut -d: -f6"
        expected = "hello from a package\nconfigured\nmade\t1\n/home/ann\n"
        assert (await sandbox.exec(shown)).stdout == expected
        snapshot = await sandbox.snapshot()
        assert (await sandbox.exec("dpkg --purge made && ! made")).ok
        await sandbox.restore(snapshot)
        assert (await sandbox.exec(shown)).stdout == expected
        async with AsyncSandbox.create(snapshot=snapshot.id) as copy:
            assert (await copy.exec(shown)).stdout == expected
        async with AsyncSandbox.create(image=debian) as other:
            assert (await other.exec("made; getent passwd ann")).stdout == ""
    await snapshot.delete()


async def test_what_no_rule_allows_is_denied_and_told(debian: str) -> None:
    async with AsyncSandbox.create(image=debian, network=NetworkPolicy(allow=["files.example"])) as sandbox:
        tried = await sandbox.exec(
            "getent hosts other.example; echo $?; (echo > /dev/tcp/192.0.2.1/80) 2>/dev/null; echo $?; "
            "getent hosts files.example"
        )
        code, refused, allowed = tried.stdout.splitlines()
        assert (code, refused, allowed.split()[1]) == ("2", "1", "files.example")
        assert [each.host for each in tried.denied] == ["other.example"]
    async with AsyncSandbox.create(image=debian) as sandbox:
        assert (
            await sandbox.exec("getent hosts files.example; echo $?; cat /proc/net/route | wc -l")
        ).stdout == "2\n1\n"
