"""Frames between an executor and the runtime: four bytes of length, then JSON."""

import json

LENGTH_BYTES = 4
# A single result larger than this is cut; the frame that carries it says so.
MOST_RESULT_BYTES = 16 << 20


class Channel:
    """The executor's end."""

    def __init__(self, sock):
        # type: (socket.socket) -> None
        self._sock = sock
        self._file = sock.makefile("rb")

    def receive(self):
        # type: () -> dict[str, object] | None
        """The next request; None when the runtime has closed the channel."""
        head = self._file.read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return None
        return json.loads(self._file.read(int.from_bytes(head, "big")))

    def send(self, kind, **fields):
        # type: (str, **object) -> None
        """One frame."""
        body = json.dumps({"kind": kind, **fields}, separators=(",", ":"), default=str, ensure_ascii=False).encode(
            "utf-8", "replace"
        )
        self._sock.sendall(len(body).to_bytes(LENGTH_BYTES, "big") + body)


def bounded(bundle):
    # type: (dict[str, object]) -> tuple[dict[str, object], bool]
    """The bundle without what is too large, and whether anything was cut."""
    kept = {}
    cut = False
    for mime, value in bundle.items():
        size = len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
        if size <= MOST_RESULT_BYTES:
            kept[mime] = value
        else:
            cut = True
            if mime == "text/plain" and isinstance(value, str):
                kept[mime] = value[:MOST_RESULT_BYTES]
    return kept, cut
