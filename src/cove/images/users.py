"""Users of an image, from its /etc/passwd and /etc/group: hostile text, of which at most a MiB is read."""

from dataclasses import dataclass

from cove.errors import ValidationFailed
from cove.images.merged_view import MergedView

_MOST_BYTES = 1 << 20
_MOST_ID = 65534


@dataclass(frozen=True, slots=True)
class ImageUser:
    """One user: a number need not have a name."""

    id: int
    group: int
    name: str
    home: str


ROOT = ImageUser(0, 0, "root", "/root")


def find_user(view: MergedView, text: str) -> ImageUser:
    """Find `name`, `uid`, `name:group` or `uid:gid`; nothing is root. ValidationFailed for one there is not."""
    wanted, colon, wanted_group = text.partition(":")
    lines = _lines(view, "/etc/passwd", 7)
    found = next((line for line in lines if wanted in (line[0], line[2])), None)
    if found is not None and _is_id(found[2]) and _is_id(found[3]):
        home = found[5] if found[5].startswith("/") else "/"
        user = ImageUser(int(found[2]), int(found[3]), found[0], home)
    elif wanted in ("", "0", "root"):
        user = ROOT
    elif _is_id(wanted):
        user = ImageUser(int(wanted), 0, wanted, "/")
    else:
        raise ValidationFailed(f"the image has no user {wanted!r}: its /etc/passwd does not name one")
    return user if not colon else ImageUser(user.id, _find_group(view, wanted_group), user.name, user.home)


def _find_group(view: MergedView, wanted: str) -> int:
    for line in _lines(view, "/etc/group", 4):
        if wanted in (line[0], line[2]) and _is_id(line[2]):
            return int(line[2])
    if _is_id(wanted):
        return int(wanted)
    raise ValidationFailed(f"the image has no group {wanted!r}: its /etc/group does not name one")


def _lines(view: MergedView, path: str, fields: int) -> list[list[str]]:
    text = (view.read(path, _MOST_BYTES) or b"").decode("utf-8", "replace")
    return [line for line in (each.split(":") for each in text.splitlines()) if len(line) == fields]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= _MOST_ID
