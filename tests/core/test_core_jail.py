"""The jail is a list: these tests read it."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from cove.core.etc import HOST_ETC, SYNTHETIC_ETC, choose_names
from cove.core.jail import (
    BUILT_IN_ENV,
    HOST_DIRECTORY,
    PYTHON_DIRECTORY,
    Arguments,
    Host,
    agent_command,
    copied_masks,
    copy_mark,
    image_environment,
    jail_arguments,
    place_mark,
)
from cove.core.mount import bound, staged
from cove.core.users import ROOT_CAPABILITIES
from cove.errors import ValidationFailed
from cove.model import Mount, Network, SandboxSpec, SpecFields, make_spec

pytestmark = pytest.mark.pure

HOST = Host(
    root_links={"bin": "usr/bin", "lib": "usr/lib"},
    root_directories=("lib64",),
    etc="/state/etc/abc",
    proc_files=("cmdline",),
    proc_directories=("acpi",),
    masks_are_copied=False,
    empty="/state/empty",
    agent="/state/agent/abc",
    interpreter="/usr/bin/python3",
    interpreter_prefix=None,
    resolv_conf="/host/resolv.conf",
    workspace="/state/sandboxes/k/workspace",
    home="/state/sandboxes/k/home",
    tmp="/state/sandboxes/k/tmp",
    shell="/state/sandboxes/k/shell",
    executor="/state/executor/abc",
    python="/state/python",
)
PLAIN = SandboxSpec()


def arguments(spec: SandboxSpec = PLAIN, host: Host = HOST) -> Sequence[str]:
    mounts = bound(spec.mounts)
    return jail_arguments(spec, host, mounts, staged(mounts), info_descriptor=9, filter_descriptor=8)


def pairs(words: Sequence[str], option: str) -> list[tuple[str, str]]:
    return [(words[at + 1], words[at + 2]) for at, word in enumerate(words) if word == option]


def replaced(**changes: object) -> Host:
    return Host(**{**{name: getattr(HOST, name) for name in Host.__dataclass_fields__}, **changes})


def test_the_sandbox_has_namespaces_of_its_own_and_no_rights() -> None:
    words = arguments()
    for option in ("user", "pid", "ipc", "uts", "net"):
        assert f"--unshare-{option}" in words
    assert "--unshare-cgroup-try" in words
    assert "--disable-userns" in words
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert {"--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"} <= set(words)
    assert words[words.index("--uid") + 1] == words[words.index("--gid") + 1] == "1000"
    assert words[words.index("--info-fd") + 1] == "9"
    assert words[words.index("--seccomp") + 1] == "8"


def test_only_the_host_network_is_shared_and_only_when_asked_for() -> None:
    assert "--unshare-net" not in arguments(SandboxSpec(network=Network.HOST))
    assert "/etc/resolv.conf" not in arguments()
    assert ("/host/resolv.conf", "/etc/resolv.conf") in pairs(arguments(SandboxSpec(network=Network.HOST)), "--ro-bind")
    without = arguments(SandboxSpec(network=Network.HOST), replaced(resolv_conf=None))
    assert "/etc/resolv.conf" not in without


def test_nothing_of_the_host_is_bound_but_the_system_and_our_own_places() -> None:
    words = arguments()
    allowed = {"/usr", "/lib64"}
    for source, target in pairs(words, "--ro-bind"):
        if target.startswith("/proc/"):
            assert source in ("/dev/null", HOST.empty)
            continue
        assert source in allowed | {HOST.etc, HOST.shell, HOST.agent, HOST.executor, HOST.python}
    assert pairs(words, "--bind") == [
        (HOST.workspace, "/workspace"),
        (HOST.home, "/home/user"),
        (HOST.tmp, "/tmp"),
    ]
    assert not {"--dev-bind", "--dev-bind-try", "--bind-try", "--share-net"} & set(words)


def test_without_an_environment_for_code_contexts_nothing_is_bound_in_its_place() -> None:
    assert "/opt/cove/python" in arguments()
    assert "/opt/cove/python" not in arguments(host=replaced(python=None))


def test_what_is_taken_from_etc_says_nothing_about_the_hosts_people_or_secrets() -> None:
    private = {"passwd", "shadow", "group", "gshadow", "sudoers", "ssh", "hosts", "hostname", "machine-id"}
    assert not private & {name.split("/")[0] for name in HOST_ETC}
    assert "ssl/private" not in HOST_ETC
    assert not set(SYNTHETIC_ETC) & set(HOST_ETC)
    assert len(HOST_ETC) == len(set(HOST_ETC))


def test_every_place_stands_on_what_was_made_before_it() -> None:
    words = arguments(SandboxSpec(mounts=(Mount(source="/data", target="/workspace/data"),)))
    order = [
        ("--tmpfs", "/"),
        ("/usr", "/usr"),
        (HOST.etc, "/etc"),
        ("--dev", "/dev"),
        ("--tmpfs", "/dev/shm"),
        ("--remount-ro", "/dev"),
        (HOST.workspace, "/workspace"),
        (HOST.agent, "/run/cove/agent"),
        ("--tmpfs", "/run/cove/mounts"),
        ("--remount-ro", "/run/cove"),
        ("/data", "/run/cove/mounts/0"),
        ("--chdir", "/"),
    ]
    neighbours = list(pairwise(words))
    positions = [neighbours.index(pair) for pair in order]
    assert positions == sorted(positions)


def test_every_tmpfs_has_a_size() -> None:
    words = arguments()
    for at, word in enumerate(words):
        if word == "--tmpfs":
            assert "--size" in words[at - 4 : at]


def test_links_of_the_host_root_are_links_inside() -> None:
    assert pairs(arguments(), "--symlink") == [("usr/bin", "/bin"), ("usr/lib", "/lib"), ("/tmp", "/var/tmp")]


def test_an_interpreter_outside_usr_is_bound_read_only() -> None:
    words = arguments(host=replaced(interpreter_prefix="/opt/python"))
    assert ("/opt/python", "/run/cove/python") in pairs(words, "--ro-bind")


def test_mounts_are_read_only_unless_asked_for() -> None:
    mounts = (Mount(source="/data", target="/data"), Mount(source="/out", target="/out", read_only=False))
    words = arguments(SandboxSpec(mounts=mounts))
    assert ("/data", "/data") in pairs(words, "--ro-bind")
    assert ("/out", "/out") in pairs(words, "--bind")


def test_the_agent_starts_isolated_from_site_packages_and_user_directories() -> None:
    command = agent_command(["/usr/bin/python3"], "/run/cove/agent", 7, (1, 2), {"RLIMIT_NPROC": 5}, "place=k")
    assert command[:4] == ["/usr/bin/python3", "-I", "-S", "-B"]
    assert command[-5:] == ["7", "1", "2", "RLIMIT_NPROC=5", "place=k"]


def test_the_built_in_environment_names_the_sandboxs_own_user() -> None:
    assert BUILT_IN_ENV["HOME"] == "/home/user"
    assert BUILT_IN_ENV["USER"] == BUILT_IN_ENV["LOGNAME"] == "user"
    assert BUILT_IN_ENV["LANG"] == "C.UTF-8"


def test_each_mask_is_made_by_bubblewrap_or_as_a_copy() -> None:
    names: dict[str, object] = {"proc_files": ("cmdline", "keys"), "proc_directories": ("acpi", "bus")}
    host, copying = replaced(**names), replaced(**names, masks_are_copied=True)
    made = {target for _, target in pairs(arguments(host=host), "--ro-bind") if target.startswith("/proc/")}
    first = {target for _, target in pairs(arguments(host=copying), "--ro-bind") if target.startswith("/proc/")}
    assert made == {"/proc/cmdline", "/proc/keys", "/proc/acpi", "/proc/bus"} == first | set(copied_masks(copying))
    assert copied_masks(copying) == {"/proc/keys": "/proc/cmdline", "/proc/bus": "/proc/acpi"}
    assert copied_masks(host) == {}


@pytest.mark.parametrize("word", ["/data\0--bind\0/\0/host", "\0", "\ud800"])
def test_no_argument_can_carry_a_nul_or_what_has_no_bytes(word: str) -> None:
    with pytest.raises(ValidationFailed, match="cannot be a part"):
        Arguments(["--bind", word, "/data"])
    with pytest.raises(ValidationFailed):
        arguments(SandboxSpec(mounts=(Mount(source="/data", target=word),)))


def test_arguments_arrive_as_they_are() -> None:
    assert Arguments(["--bind", "/ä\udcff", ""]).encode() == b"--bind\0/\xc3\xa4\xff\0\0"


def test_with_users_of_its_own_the_map_is_waited_for_and_few_capabilities_stay() -> None:
    words = jail_arguments(
        PLAIN, replaced(has_users=True), (), {}, info_descriptor=9, filter_descriptor=8, block_descriptor=7
    )
    assert words[words.index("--userns-block-fd") + 1] == "7"
    assert not {"--disable-userns", "--uid", "--gid"} & set(words)
    kept = [words[at + 1] for at, word in enumerate(words) if word == "--cap-add"]
    assert kept == list(ROOT_CAPABILITIES)
    assert not {"CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE", "CAP_SYS_RESOURCE"} & set(kept)


def test_with_a_user_namespace_that_has_its_map_the_agent_is_its_root() -> None:
    words = jail_arguments(
        PLAIN, replaced(has_users=True), (), {}, info_descriptor=9, filter_descriptor=8, users_descriptor=7
    )
    assert words[words.index("--userns") + 1] == "7"
    assert (words[words.index("--uid") + 1], words[words.index("--gid") + 1]) == ("0", "0")
    assert not {"--disable-userns", "--userns-block-fd", "--unshare-user"} & set(words)
    kept = [words[at + 1] for at, word in enumerate(words) if word == "--cap-add"]
    assert kept == list(ROOT_CAPABILITIES)
    assert words.index("--cap-drop") < words.index("--cap-add")


def test_of_the_host_only_known_names_and_versioned_javas_are_shown() -> None:
    found = ["shadow", "passwd", "maven", "java-21-openjdk", "java-11-openjdk", "java-11-openjdk.bak"]
    assert choose_names(found) == (*HOST_ETC, "java-11-openjdk", "java-21-openjdk")


def test_the_mark_of_a_place_is_its_own_and_does_not_tell_the_key() -> None:
    mark = place_mark("abcdefghij23")
    assert mark == place_mark("abcdefghij23") != place_mark("abcdefghij24")
    assert "abcdefghij23" not in mark
    assert copy_mark("abcdefghij23") == mark.replace("place=", "copy=")


def test_beside_an_image_the_hosts_programs_are_bound_read_only_and_the_user_is_the_images() -> None:
    assert HOST_DIRECTORY not in arguments()
    words = arguments(host=replaced(has_image=True, user_id=0, group_id=5))
    assert ("/usr", HOST_DIRECTORY) in pairs(words, "--ro-bind")
    assert (words[words.index("--uid") + 1], words[words.index("--gid") + 1]) == ("0", "5")


def test_the_environment_of_an_image_has_nothing_of_the_hosts_interpreters() -> None:
    env = image_environment("web", "/var/web")
    assert (env["HOME"], env["USER"], env["LOGNAME"]) == ("/var/web", "web", "web")
    assert PYTHON_DIRECTORY not in env["PATH"]


@pytest.mark.parametrize(
    "fields",
    [{"image": "debian", "isolation": "none"}, {"image": "debian", "snapshot": "x"}, {"user": "root"}],
    ids=str,
)
def test_an_image_needs_isolation_and_a_user_needs_an_image(fields: SpecFields) -> None:
    with pytest.raises(ValidationFailed):
        make_spec(None, fields)
