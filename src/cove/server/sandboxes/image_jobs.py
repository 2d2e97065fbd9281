"""Hold a server to the number of images that are built, pulled, loaded or saved at a time, by all workers. Blocks.

Each takes a place: a locked file of the state directory, which the kernel frees when its worker dies.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cove.errors import LimitExceeded
from cove.images.store import ImageStore
from cove.linux.file_lock import is_locked, try_lock

_PLACES = "jobs"


@contextmanager
def image_job(store: ImageStore, most: int) -> Iterator[None]:
    """Take one of so many places. Raises LimitExceeded when there is none: nothing was begun."""
    places = store.path / _PLACES
    places.mkdir(mode=0o700, exist_ok=True)
    for number in range(most):
        place = places / str(number)
        place.touch(0o600)
        lock = try_lock(place)
        if lock is not None:
            with lock:
                yield
            return
    raise _too_many(most)


def check_image_job(store: ImageStore, most: int) -> None:
    """Raise LimitExceeded when there is no place just now, before a client has sent what it wants worked on."""
    if all(is_locked(store.path / _PLACES / str(number)) for number in range(most)):
        raise _too_many(most)


def _too_many(most: int) -> LimitExceeded:
    return LimitExceeded(
        f"this server works on {most} images at a time, which is its max_image_jobs: try again when one is done"
    )
