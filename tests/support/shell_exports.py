"""What a shell says it exports, read at once."""

from cove.core.shell_exports import parse_exports


def environment(text: bytes) -> dict[str, str]:
    """What all steps together read."""
    parsing = parse_exports(text)
    while True:
        try:
            next(parsing)
        except StopIteration as done:
            found: dict[str, str] = done.value
            return found
