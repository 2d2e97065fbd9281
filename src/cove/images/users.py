"""Find a user of an image in its own /etc/passwd and /etc/group, of which a bounded part is read."""

from cove.core.users import MOST_BYTES, User, find_user
from cove.images.merged_view import MergedView


def find_image_user(view: MergedView, text: str) -> User:
    """Find a user as core/users says."""
    passwd, group = (view.read(path, MOST_BYTES) or b"" for path in ("/etc/passwd", "/etc/group"))
    return find_user(passwd, group, text)
