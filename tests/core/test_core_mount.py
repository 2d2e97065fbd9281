"""Mounts as text: which are refused, in which order they are made, which are staged."""

import pytest

from cove.core.mount import check_targets, normalise, staged
from cove.errors import PermissionDenied, ValidationFailed
from cove.model import Mount

pytestmark = pytest.mark.pure


def mount(target: str, *, read_only: bool = False) -> Mount:
    return Mount(source="/data", target=target, read_only=read_only)


@pytest.mark.parametrize("prefix", ["", "/", "//", "/./"])
@pytest.mark.parametrize(
    "target",
    [
        *("/", "/usr", "/usr/lib", "/proc", "/proc/1", "/dev", "/dev/shm", "/etc", "/etc/passwd", "/var/tmp"),
        *("/run/cove", "/run/cove/agent", "/run", "/bin", "/sbin", "/lib", "/lib64", "/sys"),
    ],
)
def test_a_target_that_replaces_the_system_is_refused_however_it_is_written(target: str, prefix: str) -> None:
    with pytest.raises(PermissionDenied, match="mount target"):
        check_targets([mount(prefix + target)])


@pytest.mark.parametrize("target", ["data", "/workspace/../usr", "", ".."])
def test_a_target_is_an_absolute_path_without_dots(target: str) -> None:
    with pytest.raises(ValidationFailed, match="absolute"):
        check_targets([mount(target)])


@pytest.mark.parametrize("target", ["/data", "/workspace/data", "/home/user/x", "/mnt", "/opt/tool"])
def test_any_other_mount_is_taken_with_its_normal_path(target: str) -> None:
    assert check_targets([mount(f"/{target}//./")]) == (mount(target),)


def test_parents_come_before_what_lies_in_them() -> None:
    taken = check_targets([mount("/data/a/b"), mount("/workspace/x"), mount("/data")])
    assert [each.target for each in taken] == ["/data", "/workspace/x", "/data/a/b"]


def test_a_target_named_twice_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="twice"):
        check_targets([mount("/data"), mount("//data/")])


def test_a_target_in_what_code_inside_can_change_is_staged() -> None:
    targets = ("/data", "/workspace", "/srv/x", "/workspace/a", "/home/user/b", "/tmp/c", "/data/d", "/database")
    found = staged([mount(target) for target in targets])
    assert {place: each.target for place, each in found.items()} == {
        "/run/cove/mounts/3": "/workspace/a",
        "/run/cove/mounts/4": "/home/user/b",
        "/run/cove/mounts/5": "/tmp/c",
        "/run/cove/mounts/6": "/data/d",
    }


def test_a_path_is_normal_whatever_it_looks_like() -> None:
    assert normalise("//srv/../srv/./data//") == "/srv/data"
    assert normalise("/../..") == "/"
    with pytest.raises(ValidationFailed, match="absolute"):
        normalise("data")
