"""Users of an image, from text that an enemy has written."""

import pytest

from cove.core.users import (
    IMAGE_OWNER,
    MOST_BYTES,
    MOST_GROUPS,
    RANGE_USERS,
    ROOT,
    ROOT_CAPABILITIES,
    User,
    find_user,
    map_volume,
)
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/var/web:/bin/sh\nodd:x:44:45:::\n"
GROUP = b"root:x:0:\nweb:x:34:\nstaff:x:50:other,web\nstaff2:x:50:web\nbad:x:99999:web\n"

WEB = User(33, 34, "web", "/var/web", (50,))


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("web", WEB),
        ("33", WEB),
        ("", ROOT),
        ("root", ROOT),
        ("0", ROOT),
        ("odd", User(44, 45, "odd", "/")),
        ("65534", User(65534, 0, "65534", "/")),
        ("web:staff", User(33, 50, "web", "/var/web")),
        ("web:34", User(33, 34, "web", "/var/web")),
        ("7:8", User(7, 8, "7", "/")),
    ],
)
def test_a_user_is_found_by_name_or_number(text: str, user: User) -> None:
    assert find_user(PASSWD, GROUP, text) == user


@pytest.mark.parametrize("text", ["nobody", "65535", "-1", "٣", "web:nobody", "web:-1"])
def test_who_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed, match="the image has no"):
        find_user(PASSWD, GROUP, text)


@pytest.mark.parametrize("line", [b"web:x:0x21:34:web:/:/", b"web:x:33:-1:web:/:/", b"web:x:4294967296:0:web:/:/"])
def test_a_line_with_numbers_that_are_none_is_no_user(line: bytes) -> None:
    with pytest.raises(ValidationFailed, match="no user 'web'"):
        find_user(line, b"", "web")


def test_root_is_there_whatever_the_image_says() -> None:
    assert find_user(b"", b"", "root") == find_user(b"root:x:no:0:::", b"", "") == ROOT


def test_no_more_than_a_bounded_part_is_read() -> None:
    with pytest.raises(ValidationFailed):
        find_user(b"#" * MOST_BYTES + b"\nlate:x:5:5::/:/", b"", "late")
    many = b"".join(b"g%d:x:%d:web\n" % (number, number) for number in range(1000))
    assert len(find_user(PASSWD, many, "web").groups) == MOST_GROUPS


def test_a_user_is_told_to_the_agent_by_numbers() -> None:
    assert WEB.encode() == b"33:34:34,50"
    assert ROOT.encode() == b"0:0:0"


def test_root_inside_has_none_of_the_rights_that_reach_beyond() -> None:
    assert not {"CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE"} & set(ROOT_CAPABILITIES)
    assert not [name for name in ROOT_CAPABILITIES if name.startswith("CAP_SYS_")]


def test_a_volume_is_the_one_users_where_there_is_one() -> None:
    assert map_volume(9, 500, 1, 0) == [(9, 500, 1)]


@pytest.mark.parametrize("own", [0, 1, 33, RANGE_USERS - 2])
def test_every_owner_of_a_volume_is_mapped_once_and_the_own_user_has_what_is_the_volumes(own: int) -> None:
    extents = map_volume(9, 500, RANGE_USERS, own)
    shown = {disk + at: host + at for disk, host, count in extents for at in range(count)}
    assert shown[9] == 500 + own
    assert sorted(shown.values()) == list(range(500, 500 + RANGE_USERS))
    assert len(shown) == sum(count for _, _, count in extents)
    others = [number for number in range(RANGE_USERS - 1) if number != own]
    assert all(shown[IMAGE_OWNER + number] == 500 + number for number in others)
    assert shown[IMAGE_OWNER + own] == 500 + RANGE_USERS - 1
