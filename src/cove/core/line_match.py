"""Find a text in the lines of output that arrives in pieces on two streams."""

from cove.core.line_search import LONGEST_LINE
from cove.errors import ValidationFailed
from cove.model import LogMatch


class LineMatcher:
    """Fed with chunks of each stream; answers with the first line that has the text, also before that line ends."""

    def __init__(self, text: str) -> None:
        self._text = text.encode("utf-8", "surrogatepass")
        if b"\n" in self._text:
            raise ValidationFailed("the text has a line break, so that it is in no line: wait for one line of it")
        self._rest = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> LogMatch | None:
        """The match that this chunk completes, if any."""
        rest = self._rest[stream]
        data = rest + data
        at = data.find(self._text, max(0, len(rest) - len(self._text) + 1)) if data else -1
        if at >= 0:
            return LogMatch(_line(data, at))
        self._rest[stream] = data[data.rfind(b"\n") + 1 :][-LONGEST_LINE:]
        return None


def _line(data: bytes, at: int) -> str:
    end = data.find(b"\n", at)
    line = data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(data)]
    return line.decode("utf-8", "replace").removesuffix("\r")
