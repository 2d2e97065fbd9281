"""Users of an image: numbers on the host, and names from its /etc/passwd and /etc/group, which are hostile text."""

from dataclasses import dataclass

from cove.errors import ValidationFailed

# Ranges of host users lie between those of systemd's containers and those of sandboxes that have one user each.
FIRST_RANGE = 0x7000_0000
RANGE_USERS = 65_536
RANGES = 1_800
# The first range is never a sandbox's: on disk it owns what images have. So root's files there are not root's.
IMAGE_OWNER = FIRST_RANGE

# Of either file no more is read.
MOST_BYTES = 1 << 20
MOST_ID = 65534
MOST_GROUPS = 64
# What Docker gives root by default, but for what makes devices, raw packets, audit records and other roots.
ROOT_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE"),
    *("CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"),
)


# So many users from the first number on are those from the second on.
Extent = tuple[int, int, int]


def map_volume(on_disk: int, first: int, users: int, own: int) -> list[Extent]:
    """Map the owners of a volume's files to those of a sandbox, which has so many users from `first` on.

    Its `own` user, or group, has what belongs to `on_disk`: in every sandbox that is who uses the volume. The others
    are known by their numbers, counted from IMAGE_OWNER. What the own number has left elsewhere is the last one's: no
    file is without an owner here, so root can have each.
    """
    if users == 1:
        return [(on_disk, first, 1)]
    last = users - 1
    extents = [
        (on_disk, first + own, 1),
        (IMAGE_OWNER, first, own),
        (IMAGE_OWNER + own + 1, first + own + 1, last - own - 1),
        (IMAGE_OWNER + own, first + last, 1),
    ]
    return [extent for extent in extents if extent[2] > 0]


@dataclass(frozen=True, slots=True)
class User:
    """One user: a number need not have a name."""

    id: int
    group: int
    name: str
    home: str
    groups: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return it as the agent reads it: `uid:gid:group,…`."""
        groups = b",".join(b"%d" % each for each in (self.group, *self.groups))
        return b"%d:%d:%s" % (self.id, self.group, groups)


ROOT = User(0, 0, "root", "/root")


def find_user(passwd: bytes, group: bytes, text: str) -> User:
    """Find `name`, `uid`, `name:group` or `uid:gid`; nothing is root. ValidationFailed for one there is not."""
    wanted, colon, wanted_group = text.partition(":")
    found = next((line for line in _lines(passwd, 7) if wanted in (line[0], line[2])), None)
    groups = _lines(group, 4)
    if found is not None and _is_id(found[2]) and _is_id(found[3]):
        home = found[5] if found[5].startswith("/") else "/"
        user = User(int(found[2]), int(found[3]), found[0], home, _groups_of(found[0], groups))
    elif wanted in ("", "0", "root"):
        user = ROOT
    elif _is_id(wanted):
        user = User(int(wanted), 0, wanted, "/")
    else:
        raise ValidationFailed(f"the image has no user {wanted!r}: its /etc/passwd does not name one")
    return User(user.id, _find_group(groups, wanted_group), user.name, user.home) if colon else user


def _find_group(groups: list[list[str]], wanted: str) -> int:
    for line in groups:
        if wanted in (line[0], line[2]) and _is_id(line[2]):
            return int(line[2])
    if _is_id(wanted):
        return int(wanted)
    raise ValidationFailed(f"the image has no group {wanted!r}: its /etc/group does not name one")


def _groups_of(name: str, groups: list[list[str]]) -> tuple[int, ...]:
    """Return the groups that name a user among their members, up to a bound."""
    found = [int(line[2]) for line in groups if _is_id(line[2]) and name in line[3].split(",")]
    return tuple(dict.fromkeys(found))[:MOST_GROUPS]


def _lines(text: bytes, fields: int) -> list[list[str]]:
    lines = text[:MOST_BYTES].decode("utf-8", "replace").splitlines()
    return [line for line in (each.split(":") for each in lines) if len(line) == fields]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MOST_ID
