"""Commands of the bridge protocol."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.bridge_client import BridgeClient
from support.bridge_fixtures import bridge, server

pytestmark = pytest.mark.pure

__all__ = ["bridge", "server"]  # fixtures


def test_the_answer_is_a_stream_of_events_byte_for_byte(bridge: BridgeClient) -> None:
    reply = bridge.call("POST", "exec", {"argv": ["echo", "hi"]})
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in reply.headers
    assert reply.body == b'event: stdout\ndata: aGkK\n\nevent: exit\ndata: {"exit_code":0}\n\n'


def test_both_streams_arrive_apart(bridge: BridgeClient) -> None:
    ran = bridge.shell("echo out; echo err >&2; exit 3")
    assert (ran.stdout, ran.stderr, ran.exit_code) == (b"out\n", b"err\n", 3)


REFUSED = (
    (b"no json", 400, "Invalid JSON body"),
    (b"", 400, "Invalid JSON body"),
    (b"\xff", 400, "Invalid JSON body"),
    (b"null", 400, "argv must be a non-empty array"),
    (b"[]", 400, "argv must be a non-empty array"),
    (b"{}", 400, "argv must be a non-empty array"),
    (b'{"argv": []}', 400, "argv must be a non-empty array"),
    (b'{"argv": "ls"}', 400, "argv must be a non-empty array"),
    (b'{"argv": ["ls", 1]}', 400, "argv must be a non-empty array"),
    (b'{"argv": [["ls"]]}', 400, "argv must be a non-empty array"),
    (b'{"argv": ["ls"], "cwd": "/"}', 403, "cwd must resolve to a location within /workspace"),
    (b'{"argv": ["ls"], "cwd": ".."}', 403, "cwd must resolve to a location within /workspace"),
    (b'{"argv": ["ls"], "cwd": "/workspacefoo"}', 403, "cwd must resolve to a location within /workspace"),
    (b'{"argv": ["ls"], "cwd": "/workspace/../etc"}', 403, "cwd must resolve to a location within /workspace"),
    (b'{"argv": ["ls"], "cwd": "//etc"}', 403, "cwd must resolve to a location within /workspace"),
    (b'{"argv": ["ls"], "cwd": "a/../../b"}', 403, "cwd must resolve to a location within /workspace"),
)


def test_what_is_wrong_is_refused_with_its_status_and_text(bridge: BridgeClient) -> None:
    for body, status, text in REFUSED:
        reply = bridge.call("POST", "exec", body)
        assert reply.refusal[:2] == (status, "invalid_request"), body
        assert text in reply.refusal[2], body


def test_the_checks_come_in_their_order(bridge: BridgeClient) -> None:
    bad_session = {"Session_Id": "a b"}
    for body, text in (
        (b"no json", "Invalid JSON body"),
        (b'{"argv": [], "cwd": "/"}', "argv must be"),
        (b'{"argv": ["ls"], "cwd": "/"}', "Invalid session ID format"),
    ):
        assert text in bridge.call("POST", "exec", body, **bad_session).refusal[2]


@pytest.mark.parametrize(
    ("cwd", "place"),
    [
        ("/workspace", "/workspace"),
        ("sub", "/workspace/sub"),
        ("./sub/../sub//deep/", "/workspace/sub/deep"),
        ("/workspace/sub", "/workspace/sub"),
        ("", "/workspace"),
        (7, "/workspace"),
        (None, "/workspace"),
    ],
)
def test_a_working_directory_is_relative_to_the_workspace(bridge: BridgeClient, cwd: object, place: str) -> None:
    bridge.shell("mkdir -p sub/deep")
    assert bridge.exec("pwd", cwd=cwd).stdout.decode() == f"{place}\n"


def test_a_working_directory_that_does_not_exist_is_a_failed_command(bridge: BridgeClient) -> None:
    ran = bridge.exec("pwd", cwd="nowhere")
    assert ran.stdout == b""
    assert ran.exit_code == 1
    assert b"/workspace/nowhere" in ran.stderr


def test_argv_is_a_line_for_bash(bridge: BridgeClient) -> None:
    assert bridge.exec("exit", "42").exit_code == 42
    assert bridge.exec("cd", "/").exit_code == 0
    assert bridge.exec("A=1", "printenv", "A").stdout == b"1\n"
    missing = bridge.exec("no-such-program")
    assert missing.exit_code == 127
    assert b"no-such-program" in missing.stderr


LITERAL = (
    *("a b", "it's", '"quoted"', "$HOME", "`id`", "$(id)", "*", "?", "[a]", "a\nb", "a\tb", "", "ü☃", "\\", "\\n"),
    *("!", "#", "&", ";", "|", "<", ">", "(", "{a,b}", "~", "-n", "--", "a=b", "=", "\r", "\x01", "'", "''", " "),
)


def test_every_word_arrives_literally(bridge: BridgeClient) -> None:
    ran = bridge.exec("printf", "%s\\0", *LITERAL)
    assert ran.stdout.decode().split("\0")[:-1] == list(LITERAL)


def test_200_kilobytes_of_words_are_no_problem(bridge: BridgeClient) -> None:
    words = ["x" * 1000] * 300
    assert bridge.exec("sh", "-c", 'echo "$#"', "sh", *words).stdout == b"300\n"


def test_a_word_that_linux_cannot_pass_is_an_error_event(bridge: BridgeClient) -> None:
    ran = bridge.exec("echo", "a\0b")
    assert ran.error is not None
    assert ran.error["code"] == "exec_error"


def test_standard_input_is_empty(bridge: BridgeClient) -> None:
    assert bridge.exec("cat").exit_code == 0


def test_output_is_exact_to_the_byte(bridge: BridgeClient) -> None:
    every = bytes(range(256)) * 1000
    bridge.call("PUT", "file/workspace/every", every)
    assert bridge.exec("cat", "every").stdout == every
    assert bridge.shell("printf 'no newline'").stdout == b"no newline"


def test_much_output_comes_in_small_events(bridge: BridgeClient) -> None:
    ran = bridge.shell("head -c 20000000 /dev/zero; echo end >&2")
    assert ran.stdout == bytes(20_000_000)
    assert ran.stderr == b"end\n"
    assert max(len(data) for _, data in ran.events) <= 64 << 10


def test_events_are_sent_while_the_command_runs(bridge: BridgeClient) -> None:
    connection = http.client.HTTPConnection(*bridge.address, timeout=60)
    headers = {"Authorization": f"Bearer {bridge.server.key}"}
    body = json.dumps({"argv": ["sh", "-c", "echo first; until test -e go; do sleep 0.01; done; echo second"]})
    connection.request("POST", f"{bridge.root}/exec", body, headers)
    answer = connection.getresponse()
    assert answer.readline() == b"event: stdout\n"
    assert answer.readline() == b"data: Zmlyc3QK\n"
    bridge.call("PUT", "file/workspace/go", b"")
    assert answer.read() == b'\nevent: stdout\ndata: c2Vjb25kCg==\n\nevent: exit\ndata: {"exit_code":0}\n\n'
    connection.close()


def test_signals_are_128_and_their_number(bridge: BridgeClient) -> None:
    for number in (9, 15, 11):
        assert bridge.shell(f"kill -{number} $$").exit_code == 128 + number


def test_a_timeout_is_124_with_a_word_about_it(bridge: BridgeClient) -> None:
    ran = bridge.shell("echo before; sleep 1000", timeout_ms=300)
    assert (ran.stdout, ran.exit_code) == (b"before\n", 124)
    assert ran.stderr == b"Command timed out after 300ms\n"


def test_a_command_that_ignores_term_is_killed_in_time(bridge: BridgeClient) -> None:
    ran = bridge.shell("trap '' TERM; while :; do sleep 1; done", timeout_ms=200)
    assert ran.exit_code == 124
    assert bridge.shell("ps -e -o comm= | grep -c sleep").stdout == b"0\n"


@pytest.mark.parametrize("timeout", ["5", None, True, [], 0, -5])
def test_what_is_no_timeout_is_ignored(bridge: BridgeClient, timeout: object) -> None:
    assert bridge.exec("sleep", "0.05", timeout_ms=timeout).exit_code == 0


@pytest.mark.parametrize("exponent", [15, 18, 300, 400])
def test_a_timeout_that_nobody_lives_to_see_is_none(bridge: BridgeClient, exponent: int) -> None:
    for session in ("", "s1"):
        assert bridge.exec("sleep", "0.05", timeout_ms=10**exponent, session=session).exit_code == 0


def test_a_background_child_that_holds_the_pipe_delays_nothing(bridge: BridgeClient) -> None:
    assert bridge.shell("echo here; sleep 1000 &").stdout == b"here\n"
    assert bridge.shell("ps -e -o comm= | grep -c sleep").stdout == b"1\n"


def test_a_command_whose_client_is_gone_is_ended(bridge: BridgeClient) -> None:
    bridge.exec("true")
    body = json.dumps({"argv": ["sh", "-c", "touch here; sleep 1000"]}).encode()
    head = f"POST {bridge.root}/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bridge.server.key}\r\n"
    with bridge.connect() as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until = time.monotonic() + 20
        while bridge.exec("test", "-e", "here").exit_code != 0:
            assert time.monotonic() < until
    until = time.monotonic() + 20
    while bridge.shell("ps -e -o comm= | grep -c sleep").stdout != b"0\n":
        assert time.monotonic() < until


def test_commands_run_in_parallel_and_share_no_state(bridge: BridgeClient) -> None:
    bridge.exec("true")
    script = "mkdir $0; until test -d 0 -a -d 1 -a -d 2 -a -d 3; do sleep 0.01; done; cd $0; export A=$0; pwd"
    with ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda name: bridge.exec("bash", "-c", script, str(name)), range(4)))
    assert [each.stdout.decode() for each in ran] == [f"/workspace/{name}\n" for name in range(4)]
    assert bridge.shell("pwd; echo $A").stdout == b"/workspace\n\n"


def test_manifest_variables_come_by_env(bridge: BridgeClient) -> None:
    assert bridge.exec("env", "A=b c", "sh", "-lc", 'echo "$A"').stdout == b"b c\n"


def test_a_script_in_tmp_can_be_run_by_path_and_gives_its_own_exit_code(bridge: BridgeClient) -> None:
    bridge.shell("mkdir -p /tmp/agents/bin; printf '#!/bin/sh\\nexit 113\\n' > /tmp/agents/bin/x; chmod +x $_")
    bridge.exec("chmod", "+x", "/tmp/agents/bin/x")
    assert bridge.exec("/tmp/agents/bin/x").exit_code == 113
