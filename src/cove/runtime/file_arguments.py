"""Check the arguments of file operations before anything is done."""

from cove.core.command import encode_text
from cove.errors import FileTooLarge, ValidationFailed

MOST_READ_BYTES = 1 << 30
MOST_MATCHES = 100_000
_MOST_PATTERN_BYTES = 1 << 16


def check_content(data: bytes | str) -> bytes:
    """The bytes to write, or ValidationFailed."""
    if isinstance(data, str):
        try:
            return data.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValidationFailed(f"the text has a character that UTF-8 cannot carry: {error.reason}") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ValidationFailed(f"data must be bytes or a string, not {type(data).__name__}")


def check_times(times: int, count: int | None, path: str) -> int:
    """Return how often a text stands in a file, if that is as often as it has to."""
    if times == 0:
        raise ValidationFailed(f"{path} does not contain the text that is to be replaced")
    if count is not None and times != count:
        raise ValidationFailed(f"the text stands in {path} {times} times, not {count}: give more of it", times=times)
    return times


def check_size(size: int, path: str) -> int:
    """The size of a file that is read or made as a whole, or FileTooLarge."""
    if size > MOST_READ_BYTES:
        raise FileTooLarge(f"{path} has {size} bytes: read it in pieces with read_stream, or download it")
    return size


def check_pattern(pattern: str, subject: str) -> bytes:
    """A pattern as an argument, or ValidationFailed."""
    encoded = encode_text(pattern, subject)
    if len(encoded) > _MOST_PATTERN_BYTES:
        raise ValidationFailed(f"{subject} is longer than 64 KiB")
    return encoded


def check_glob(pattern: str) -> bytes:
    """A pattern of paths below a directory as an argument, or ValidationFailed."""
    encoded = check_pattern(pattern, "pattern")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValidationFailed(f"the pattern {pattern} leads out of its directory: give another one as root")
    return encoded


def check_limit(limit: int) -> int:
    """The most matches that a search may find, or ValidationFailed."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_MATCHES:
        raise ValidationFailed(f"limit must be a number from 1 to {MOST_MATCHES}, not {limit!r}")
    return limit
