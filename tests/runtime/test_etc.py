"""/etc inside: one copy of what the host has for everybody, files of our own, and a profile that keeps PATH."""

import os
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.core.etc import HOST_ETC, SYNTHETIC_ETC
from cove.core.jail import BUILT_IN_ENV
from cove.runtime.etc import EtcDirectory

pytestmark = pytest.mark.anyio


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A small /etc of a host."""
    source = tmp_path / "host"
    (source / "ssl" / "certs").mkdir(parents=True)
    (source / "alternatives").mkdir()
    for name, content in (("ld.so.conf", "conf"), ("passwd", "secret"), ("ssl/certs/all.crt", "certificates")):
        (source / name).write_text(content)
        (source / name).chmod(0o644)
    (source / "ssl" / "certs" / "key").write_text("secret")
    (source / "ssl" / "certs" / "key").chmod(0o600)
    (source / "alternatives" / "vi").symlink_to("/usr/bin/vi")
    (source / "ssl" / "certs" / "hash.0").symlink_to("all.crt")
    return source


@pytest.fixture
def etc(tmp_path: Path, host: Path) -> EtcDirectory:
    (tmp_path / "copies").mkdir()
    return EtcDirectory(tmp_path / "copies", host)


def test_a_copy_has_what_everybody_may_read_and_our_own_files(etc: EtcDirectory) -> None:
    copy = etc.current()
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
    assert names == {"ld.so.conf", "ssl/certs/all.crt", "ssl/certs/hash.0", "alternatives/vi", *SYNTHETIC_ETC}
    assert os.readlink(copy / "alternatives" / "vi") == "/usr/bin/vi"
    assert os.readlink(copy / "ssl" / "certs" / "hash.0") == "all.crt"
    assert (copy / "passwd").read_text() == SYNTHETIC_ETC["passwd"]
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_a_link_to_what_is_not_seen_inside_is_followed(etc: EtcDirectory, host: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("zone")
    (tmp_path / "elsewhere").chmod(0o644)
    (tmp_path / "closed").write_text("secret")
    (tmp_path / "closed").chmod(0o600)
    (host / "localtime").symlink_to(tmp_path / "elsewhere")
    (host / "magic").symlink_to(tmp_path / "closed")
    copy = etc.current()
    assert not (copy / "localtime").is_symlink()
    assert (copy / "localtime").read_text() == "zone"
    assert not os.path.lexists(copy / "magic")


def test_a_copy_is_made_once_and_anew_when_the_hosts_changes(etc: EtcDirectory, host: Path) -> None:
    first = etc.current()
    assert etc.current() == first
    assert EtcDirectory(etc.directory, host).current() == first
    (host / "ssl" / "certs" / "all.crt").write_text("others now")
    second = etc.current()
    assert second != first
    assert (second / "ssl" / "certs" / "all.crt").read_text() == "others now"
    assert (first / "ssl" / "certs" / "all.crt").read_text() == "certificates"
    (host / "services").write_text("ssh")
    (host / "services").chmod(0o644)
    assert (etc.current() / "services").read_text() == "ssh"
    (host / "services").unlink()
    assert not (etc.current() / "services").exists()


def test_the_configuration_of_java_is_there_and_no_other_that_usr_links_to(etc: EtcDirectory, host: Path) -> None:
    etc.current()
    for name in ("java-21-openjdk", "java-21-openjdk.secret", "maven"):
        (host / name).mkdir()
        (host / name).chmod(0o755)
        for file, mode in (("public", 0o644), ("closed", 0o600)):
            (host / name / file).write_text("content")
            (host / name / file).chmod(mode)
    copy = etc.current()
    assert {path.parts[-2:] for path in copy.glob("[jm]a*/*")} == {("java-21-openjdk", "public")}


def test_what_was_left_by_a_program_that_was_killed_is_no_copy(etc: EtcDirectory) -> None:
    (etc.directory / ".half").mkdir()
    assert (etc.current() / "passwd").exists()


@pytest.mark.parametrize(
    "shell", ["bash -lc {}", "sh -lc {}", "bash -ilc {}", "env -i bash -lc {}", "env -i PATH=/usr/bin:/bin sh -lc {}"]
)
async def test_a_login_shell_has_the_environment_that_every_command_has(shell: str) -> None:
    names = ("PATH", "HOME", "USER", "LANG", "NPM_CONFIG_PREFIX")
    show = "'" + "; ".join(f'echo "{name}=${name}"' for name in names) + "'"
    async with AsyncSandbox.create() as sandbox:
        shown = (await sandbox.exec(shell.format(show))).check().stdout
    assert shown.splitlines() == [f"{name}={BUILT_IN_ENV[name]}" for name in names]


async def test_a_login_shell_keeps_the_path_it_was_given_and_leaves_no_names_of_its_own() -> None:
    async with AsyncSandbox.create(env={"PATH": "/opt/tool/bin:/usr/bin:/bin"}) as sandbox:
        shown = (await sandbox.exec("""bash -lc 'echo "$PATH"; compgen -v _cove_; printf %q "$IFS"'""")).stdout
    assert shown.splitlines() == ["/opt/tool/bin:/usr/bin:/bin", "$' \\t\\n'"]


async def test_a_login_shell_finds_the_python_of_code_contexts() -> None:
    async with AsyncSandbox.create() as sandbox:
        for shell in ("bash", "sh"):
            assert (await sandbox.exec([shell, "-lc", "command -v ipython"])).stdout == "/opt/cove/python/bin/ipython\n"


async def test_the_system_is_named_and_resolv_conf_is_there() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert "ID=" in (await sandbox.exec("cat /etc/os-release")).check().stdout
        assert (await sandbox.exec("cat /etc/resolv.conf")).check().stdout == "nameserver 127.0.0.53\n"
    async with AsyncSandbox.create(network="host") as sandbox:
        assert (await sandbox.exec("cat /etc/resolv.conf")).check().stdout_bytes == Path(
            "/etc/resolv.conf"
        ).read_bytes()


async def test_what_the_host_has_for_everybody_is_the_same_inside() -> None:
    names = [name for name in HOST_ETC if Path("/etc", name).is_file()]
    async with AsyncSandbox.create() as sandbox:
        for name in names:
            assert (await sandbox.exec(["cat", f"/etc/{name}"])).stdout_bytes == Path("/etc", name).read_bytes()
        assert (await sandbox.exec("touch /etc/new || rm /etc/passwd || echo x >> /etc/profile")).exit_code != 0
