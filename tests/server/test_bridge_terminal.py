"""Terminals of the bridge protocol."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.bridge_client import BridgeClient, bridge_server, fresh_sandbox
from support.bridge_fixtures import bridge, server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

__all__ = ["bridge", "server"]  # fixtures

pytestmark = pytest.mark.pure

TYPED = "?cols=80&rows=24"


class Terminal:
    """The client's side: binary frames are output, text frames are events."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.output = b""
        self.events: list[dict[str, Any]] = []
        self.is_closed = False

    def step(self) -> None:
        try:
            frame = self.socket.recv(timeout=20)
        except ConnectionClosed:
            self.is_closed = True
            return
        if isinstance(frame, str):
            self.events.append(json.loads(frame))
        else:
            assert len(frame) < 4 << 20
            self.output += frame

    def until(self, text: bytes) -> bytes:
        while text not in self.output:
            assert not self.is_closed, (self.output, self.events)
            self.step()
        return self.output

    def until_event(self, kind: str) -> dict[str, Any]:
        while not any(event["type"] == kind for event in self.events):
            assert not self.is_closed, (self.output, self.events)
            self.step()
        return next(event for event in self.events if event["type"] == kind)

    def until_closed(self) -> None:
        while not self.is_closed:
            self.step()

    def ready(self) -> "Terminal":
        assert self.until_event("ready") == {"type": "ready"}
        return self

    def type(self, data: bytes) -> None:
        self.socket.send(data)

    def resize(self, cols: object, rows: object) -> None:
        self.socket.send(json.dumps({"type": "resize", "cols": cols, "rows": rows}))


@contextmanager
def terminal(bridge: BridgeClient, query: str = "", key: str | None = None, **headers: str) -> Iterator[Terminal]:
    host, port = bridge.address
    shown = bridge.server.key if key is None else key
    every = {name.replace("_", "-"): value for name, value in headers.items()}
    if shown:
        every["Authorization"] = f"Bearer {shown}"
    url = f"ws://{host}:{port}{bridge.root}/pty{query}"
    with connect(url, additional_headers=every, compression=None, max_size=4 << 20, proxy=None) as socket:
        yield Terminal(socket)


def refused(bridge: BridgeClient, query: str = "", key: str | None = None, **headers: str) -> tuple[int, str, str]:
    with pytest.raises(InvalidStatus) as raised, terminal(bridge, query, key, **headers):
        pass
    body = json.loads(raised.value.response.body or b"")
    return raised.value.response.status_code, body["code"], body["error"]


def test_a_terminal_is_an_interactive_bash_in_the_workspace(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready().type(b'echo "$TERM $PWD ${-//[^i]/} $(stty size)"\r')
        shown.until(b"xterm-256color /workspace i 24 80")


def test_the_end_of_the_shell_is_told_and_the_socket_closed(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready().type(b"exit 7\r")
        assert shown.until_event("exit") == {"type": "exit", "code": 7}
        shown.until_closed()
        assert shown.events[-1]["type"] == "exit"
        assert shown.socket.close_code == 1000


def test_a_killed_shell_has_a_signal(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready().type(b"kill -9 $$\r")
        assert shown.until_event("exit") == {"type": "exit", "code": 137, "signal": 9}


def test_the_size_comes_from_the_query_and_from_resize(bridge: BridgeClient) -> None:
    with terminal(bridge, "?cols=100&rows=30") as shown:
        shown.ready().type(b"stty size\r")
        shown.until(b"30 100\r\n")
        shown.resize(120, 40)
        shown.type(b"stty size\r")
        shown.until(b"40 120\r\n")


@pytest.mark.parametrize("query", ["?cols=&rows=", "?rows=24&cols=80", "?cols=8e1", "?other=1"])
def test_sizes_that_are_left_out_have_their_defaults(bridge: BridgeClient, query: str) -> None:
    with terminal(bridge, query) as shown:
        shown.ready().type(b"stty size\r")
        shown.until(b"24 80\r\n")


@pytest.mark.parametrize(("cols", "rows", "size"), [(5000, 30, b"30 1000"), (90.0, 20.7, b"20 90")])
def test_every_size_above_zero_is_taken_as_far_as_it_goes(
    bridge: BridgeClient, cols: float, rows: float, size: bytes
) -> None:
    with terminal(bridge) as shown:
        shown.ready().resize(cols, rows)
        shown.type(b"stty size\r")
        shown.until(size + b"\r\n")
        assert [event["type"] for event in shown.events] == ["ready"]


BAD_CONTROL = (
    '{"type":"resize","cols":0,"rows":5}',
    '{"type":"resize","cols":5,"rows":0.5}',
    '{"type":"resize","cols":"5","rows":5}',
    '{"type":"resize","cols":5}',
    '{"cols":5,"rows":5}',
    '{"type":"other"}',
    "no json",
    "[]",
    "",
)


@pytest.mark.parametrize("message", BAD_CONTROL)
def test_a_bad_control_message_is_an_error_and_the_terminal_goes_on(bridge: BridgeClient, message: str) -> None:
    with terminal(bridge) as shown:
        shown.ready().socket.send(message)
        assert shown.until_event("error")["message"]
        shown.type(b"echo still $((40+2))\r")
        shown.until(b"still 42")


def test_what_is_wrong_with_a_request_is_an_ordinary_answer_in_the_order_of_the_checks(bridge: BridgeClient) -> None:
    plain = bridge.call("GET", "pty?cols=x")
    assert plain.refusal == (400, "invalid_request", "WebSocket upgrade required")
    numbers = (400, "invalid_request", "cols and rows must be valid numbers")
    bad = ("x", "NaN", "0", "-1", "1e999", "8_0", "%D9%A8", "1.2.3", "x&session=a..b")
    for query in ("?rows=x", *(f"?cols={size}" for size in bad)):
        assert refused(bridge, query) == numbers
    assert refused(bridge, "?session=a..b") == (400, "invalid_request", "Invalid session ID format")
    assert refused(bridge, Session_Id="a..b") == (400, "invalid_request", "Invalid session ID format")
    assert refused(bridge, key="wrong")[:2] == (401, "unauthorized")
    for shell in ("/no/such/shell", "%FF"):
        assert refused(bridge, f"?shell={shell}")[:2] == (502, "exec_transport_error")


def test_a_shell_can_be_chosen(bridge: BridgeClient) -> None:
    with terminal(bridge, "?shell=/bin/cat") as shown:
        shown.ready().type(b"meow\r")
        shown.until(b"meow\r\nmeow\r\n")
        shown.type(b"\x04")
        assert shown.until_event("exit")["code"] == 0


def test_the_key_may_be_in_the_query_of_this_route(bridge: BridgeClient) -> None:
    query = f"?cols=80&rows=24&authorization=Bearer%20{bridge.server.key}"
    with terminal(bridge, query, key="") as shown:
        shown.ready().type(b"echo hi\n")
        assert shown.until(b"hi\r\n")
        assert shown.until_event("exit")["code"] == 0
    with terminal(bridge, f"?authorization=bearer+{bridge.server.key}", key="") as shown:
        shown.ready()


def test_without_a_session_every_connection_has_its_own_terminal(bridge: BridgeClient) -> None:
    with terminal(bridge) as first, terminal(bridge) as second:
        first.ready().type(b"A=first; tty\r")
        second.ready().type(b"echo [$A]; tty\r")
        first.until(b"/dev/pts/")
        assert b"first" not in second.until(b"/dev/pts/")


def processes(bridge: BridgeClient, name: str) -> int:
    return int(bridge.shell(f"ps -e -o comm= | grep -c '^{name}$'").stdout)


def eventually(bridge: BridgeClient, name: str, count: int) -> None:
    until = time.monotonic() + 20
    while processes(bridge, name) != count:
        assert time.monotonic() < until


def test_a_terminal_of_its_own_ends_with_the_connection(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready().type(b"trap '' HUP TERM; sleep 100\r")
        eventually(bridge, "sleep", 1)
    eventually(bridge, "sleep", 0)
    eventually(bridge, "bash", 0)


def test_a_sessions_terminal_is_kept_and_replayed(bridge: BridgeClient) -> None:
    bridge.exec("mkdir", "x")
    bridge.exec("cd", "x", session="s1")
    bridge.exec("export", "A=kept", session="s1")
    with terminal(bridge, Session_Id="s1") as shown:
        shown.ready().type(b"echo $A $PWD; B=here\r")
        shown.until(b"kept /workspace/x\r\n")
    with terminal(bridge, "?session=s1") as again:
        again.ready()
        assert b"kept /workspace/x\r\n" in again.output
        again.type(b"echo still $B\r")
        again.until(b"still here")
    with terminal(bridge, "?session=other", Session_Id="s1") as again:
        again.ready()
        assert b"still here" in again.output
        again.type(b"sleep 1000 & exit 3\r")
        assert again.until_event("exit")["code"] == 3
    with terminal(bridge, "?session=s1") as fresh:
        fresh.ready()
        assert b"still here" not in fresh.output


def test_deleting_a_session_ends_its_terminal(bridge: BridgeClient) -> None:
    with terminal(bridge, "?session=s1") as shown:
        shown.ready()
        assert bridge.call("DELETE", "session/s1").status == 200
        shown.until_closed()


def test_deleting_the_sandbox_closes_its_terminals(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready()
        bridge.delete()
        shown.until_closed()


def test_much_output_comes_complete(bridge: BridgeClient) -> None:
    with terminal(bridge) as shown:
        shown.ready().type(b"stty -echo; head -c 8000000 /dev/zero | tr '\\0' x; echo end''mark\r")
        shown.until(b"endmark")
        assert shown.output.count(b"x" * 1000) >= 7999


def test_a_typed_line_is_what_runs(bridge: BridgeClient) -> None:
    bridge.exec("true")
    with terminal(bridge, TYPED) as shown:
        shown.ready().type(b"sh -lc 'echo hi; tty; exit 5'\n")
        shown.until_closed()
    assert shown.output.startswith(b"hi\r\n/dev/pts/")
    assert shown.events == [{"type": "ready"}, {"type": "exit", "code": 5}]


def test_a_typed_line_can_be_typed_to_and_interrupted(bridge: BridgeClient) -> None:
    with terminal(bridge, TYPED) as shown:
        shown.ready().type(b"read -r word; echo got $word; exec sleep 100\n")
        shown.type(b"something\n")
        shown.until(b"got something\r\n")
        eventually(bridge, "sleep", 1)
        shown.type(b"\x03")
        assert shown.until_event("exit") == {"type": "exit", "code": 130, "signal": 2}


def test_a_typed_line_ends_when_its_client_leaves(bridge: BridgeClient) -> None:
    with terminal(bridge, TYPED) as shown:
        shown.ready().type(b"trap '' HUP TERM; sleep 100; true\n")
        eventually(bridge, "sleep", 1)
    eventually(bridge, "sleep", 0)


def test_what_a_typed_line_leaves_in_the_background_lives_on(bridge: BridgeClient) -> None:
    with terminal(bridge, TYPED) as shown:
        shown.ready().type(b"sleep 1000 & echo started\n")
        shown.until_closed()
    assert shown.output == b"started\r\n"
    assert processes(bridge, "sleep") == 1


@pytest.mark.parametrize(
    ("query", "headers"),
    [("", {}), ("?rows=24&cols=80", {}), ("?cols=80&rows=25", {}), (TYPED, {"Cove_Fast_Path": "off"})],
)
def test_in_any_other_terminal_a_line_is_typed_into_bash(
    bridge: BridgeClient, query: str, headers: dict[str, str]
) -> None:
    with terminal(bridge, query, **headers) as shown:
        shown.ready().type(b"echo $-\n")
        shown.until(b"himBHs")
        shown.type(b"exit\n")
        assert shown.until_event("exit")["code"] == 0


@pytest.mark.parametrize("first", [b"echo $-\r", b"e"], ids=["a person's line", "a key"])
def test_what_a_person_types_goes_to_bash(bridge: BridgeClient, first: bytes) -> None:
    with terminal(bridge, TYPED) as shown:
        shown.ready().type(first)
        if not first.endswith(b"\r"):
            shown.type(b"cho $-\r")
        shown.until(b"himBHs")
        assert [event["type"] for event in shown.events] == ["ready"]


def test_a_client_that_waits_gets_a_prompt(bridge: BridgeClient) -> None:
    with terminal(bridge, TYPED) as shown:
        shown.ready().until(b"$ ")
        shown.type(b"echo $-\n")
        shown.until(b"himBHs")


def test_the_fast_path_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "cove.toml").write_text("bridge_fast_path = false\n")
    with (
        bridge_server("--config", str(tmp_path / "cove.toml")) as server,
        fresh_sandbox(server) as bridge,
        terminal(bridge, TYPED) as shown,
        terminal(bridge, TYPED, Cove_Fast_Path="on") as insisting,
    ):
        for each in (shown, insisting):
            each.ready().type(b"echo $-\n")
            each.until(b"himBHs")
