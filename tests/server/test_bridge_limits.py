"""The bridge protocol on a server that is full, or that loses a sandbox."""

import os
from pathlib import Path

import pytest
from support.bridge_client import bridge_server, fresh_sandbox

pytestmark = pytest.mark.pure


def test_a_full_server_says_so_in_a_way_that_clients_try_again(tmp_path: Path) -> None:
    (tmp_path / "cove.toml").write_text("max_sandboxes = 1\n")
    with bridge_server("--config", str(tmp_path / "cove.toml")) as server, fresh_sandbox(server) as first:
        first.exec("true")
        with fresh_sandbox(server) as second:
            for method, route in (("POST", "exec"), ("GET", "file/workspace/a"), ("POST", "persist"), ("GET", "pty")):
                status, code, text = second.call(method, route, b"" if method == "POST" else None).refusal
                assert (status, code) == (503, "capacity_exceeded")
                assert text
        assert first.exec("echo", "fine").stdout == b"fine\n"
        first.delete()
        with fresh_sandbox(server) as third:
            assert third.exec("true").exit_code == 0


def test_a_sandbox_whose_runtime_was_killed_is_started_again_with_its_files() -> None:
    with bridge_server() as server, fresh_sandbox(server) as bridge:
        bridge.call("PUT", "file/workspace/kept", b"kept")
        record = server.directory.find(bridge.id)
        assert record is not None
        holder = server.directory.holder(record.key)
        assert holder is not None
        os.kill(holder[0], 9)
        while server.directory.is_held(record.key):
            os.sched_yield()
        assert bridge.call("GET", "running").json == {"running": True}
        assert bridge.exec("cat", "kept").stdout == b"kept"
