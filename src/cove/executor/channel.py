"""Frames between an executor and the runtime: four bytes of length, then JSON."""

import _thread
import json

LENGTH_BYTES = 4
# A single result larger than this is cut; the frame that carries it says so. One character is at most six bytes.
MOST_RESULT_CHARACTERS = 15 << 20


class Channel:
    """The executor's end."""

    def __init__(self, sock):
        # type: (socket.socket) -> None
        self._sock = sock
        self._lock = _thread.allocate_lock()
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
        """One frame; threads take turns."""
        body = as_json({"kind": kind, **fields}).encode("utf-8", "replace")
        with self._lock:
            self._sock.sendall(len(body).to_bytes(LENGTH_BYTES, "big") + body)


def as_json(value):
    # type: (object) -> str
    """JSON has no numbers that are not finite: they become null, as in JavaScript."""
    try:
        return json.dumps(value, separators=(",", ":"), default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:
        loose = json.loads(json.dumps(value, default=str, ensure_ascii=False), parse_constant=lambda name: None)
        return json.dumps(loose, separators=(",", ":"), ensure_ascii=False)


def bounded(bundle):
    # type: (dict[str, object]) -> tuple[dict[str, object], bool]
    """The bundle without what is too large, the smallest first, and whether anything was cut."""
    sizes = {mime: len(value) if isinstance(value, str) else len(as_json(value)) for mime, value in bundle.items()}
    kept = {}
    room = MOST_RESULT_CHARACTERS
    for mime in sorted(bundle, key=sizes.__getitem__):
        value = bundle[mime]
        if sizes[mime] <= room:
            kept[mime] = value
            room -= sizes[mime]
        elif mime == "text/plain" and isinstance(value, str):
            kept[mime] = value[:room]
            room = 0
    return kept, any(kept.get(mime) is not bundle[mime] for mime in bundle)
