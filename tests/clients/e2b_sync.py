"""Drives the synchronous Python client of E2B, unchanged, through all it can do against a Cove server."""

import io
import time
import urllib.error
import urllib.request

import pytest
from e2b import (
    ALL_TRAFFIC,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def test_life():
    with pytest.raises(SandboxException, match="not found"):
        Sandbox.create("no-such-template")
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "00" * 16)
    sandbox = Sandbox.create(timeout=100, metadata={"team": "ü & co", "a key": "x"}, envs={"COLOUR": "blue"})
    info = sandbox.get_info()
    assert (info.sandbox_id, info.template_id, info.state) == (sandbox.sandbox_id, "base", SandboxState.RUNNING)
    assert info.metadata == {"team": "ü & co", "a key": "x"}
    assert 90 < (info.end_at - info.started_at).total_seconds() < 110
    sandbox.set_timeout(1000)
    assert (sandbox.get_info().end_at - info.end_at).total_seconds() > 800
    assert sandbox.commands.run("echo $COLOUR $HOME; pwd").stdout == "blue /home/user\n/home/user\n"

    others = [Sandbox.create(metadata={"batch": "1"}) for _ in range(3)]
    pages = Sandbox.list(query=SandboxQuery(metadata={"batch": "1"}), limit=2)
    found = pages.next_items()
    assert pages.has_next
    found += pages.next_items()
    assert not pages.has_next
    assert [each.sandbox_id for each in found] == [each.sandbox_id for each in reversed(others)]
    (one,) = Sandbox.list(query=SandboxQuery(metadata={"team": "ü & co", "a key": "x"})).next_items()
    assert one.sandbox_id == sandbox.sandbox_id
    for each in others:
        assert each.kill()

    (metrics,) = sandbox.get_metrics()
    assert 0 < metrics.mem_used < metrics.mem_total
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(SandboxException):
        sandbox.commands.run("true")


def test_pause():
    with Sandbox.create(timeout=100) as sandbox:
        counting = sandbox.commands.run("while :; do date +%N > /tmp/now; done", background=True, timeout=0)
        assert sandbox.pause()
        assert not sandbox.pause()
        assert not sandbox.is_running()
        (paused,) = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
        assert paused.sandbox_id == sandbox.sandbox_id
        with pytest.raises(SandboxException):
            sandbox.commands.run("true")
        again = Sandbox.connect(sandbox.sandbox_id, timeout=200)
        assert [each.pid for each in again.commands.list()] == [counting.pid]
        again.files.write("kept", "on disk")

        assert again.pause(keep_memory=False)
        assert not again.is_running()
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again.is_running()
        assert again.commands.list() == []
        assert again.files.read("kept") == "on disk"


def test_a_pause_in_the_place_of_the_end():
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    with Sandbox.create(timeout=100, lifecycle=lifecycle) as sandbox:
        sandbox.set_timeout(0)
        while sandbox.get_info().state is SandboxState.RUNNING:
            pass
        assert sandbox.commands.run("echo woken").stdout == "woken\n"
        assert sandbox.get_info().state is SandboxState.RUNNING


def test_copies():
    with Sandbox.create() as sandbox:
        sandbox.files.write("text", "before")
        snapshot = sandbox.create_snapshot()
        sandbox.files.write("text", "after")
        assert [each.snapshot_id for each in sandbox.list_snapshots().next_items()] == [snapshot.snapshot_id]
        with Sandbox.create(snapshot.snapshot_id) as copy:
            assert copy.files.read("text") == "before"
        (forked,) = sandbox.fork()
        assert forked.files.read("text") == "after"
        assert forked.kill()
        assert Sandbox.delete_snapshot(snapshot.snapshot_id)
        assert not Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_commands():
    with Sandbox.create() as sandbox:
        commands = sandbox.commands
        seen = []
        result = commands.run(
            "echo out; echo err >&2; printf '%s %s' $A $PWD; exit 0",
            envs={"A": "1"},
            cwd="/tmp",
            on_stdout=lambda text: seen.append(("out", text)),
            on_stderr=lambda text: seen.append(("err", text)),
        )
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n1 /tmp", "err\n", 0)
        assert "".join(text for stream, text in seen if stream == "out") == "out\n1 /tmp"
        with pytest.raises(CommandExitException) as failed:
            commands.run("echo no; exit 3")
        assert (failed.value.exit_code, failed.value.stdout) == (3, "no\n")
        with pytest.raises(TimeoutException):
            commands.run("sleep 100", timeout=0.5)
        with pytest.raises(InvalidArgumentException):
            commands.run("true", cwd="/nowhere")
        with pytest.raises(AuthenticationException, match="one user"):
            commands.run("id", user="root")
        assert commands.run("id -un", user="user").stdout == "user\n"

        size = 8_000_000
        big = commands.run(f"head -c {size} /dev/zero | tr '\\0' x; echo ü")
        assert len(big.stdout) == size + 2

        cat = commands.run("cat; echo done", background=True, stdin=True, timeout=0)
        (listed,) = commands.list()
        assert (listed.pid, listed.cmd, listed.args) == (cat.pid, "/bin/bash", ["-l", "-c", "cat; echo done"])
        commands.send_stdin(cat.pid, "typed\n")
        cat.send_stdin("more\n")
        commands.close_stdin(cat.pid)
        assert cat.wait().stdout == "typed\nmore\ndone\n"

        waiting = commands.run("read line; echo got $line; exit 7", background=True, stdin=True, timeout=0)
        waiting.disconnect()
        connected = commands.connect(waiting.pid)
        commands.send_stdin(waiting.pid, "it\n")
        with pytest.raises(CommandExitException) as ended:
            connected.wait()
        assert (ended.value.exit_code, ended.value.stdout) == (7, "got it\n")
        with pytest.raises(NotFoundException):
            commands.connect(12345)

        loud = commands.run("yes | head -c 3000000; sleep 1000", background=True, timeout=0)
        loud.disconnect()
        assert commands.kill(loud.pid)
        assert not commands.kill(loud.pid)
        sleeping = commands.run("sleep 1000", background=True)
        assert sleeping.kill()
        with pytest.raises(CommandExitException) as killed:
            sleeping.wait()
        assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
        assert commands.list() == []


def test_streamed_input():
    with Sandbox.create() as sandbox:
        cat = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
        sandbox.commands.stream_input(cat.pid, (f"{number}\n" for number in range(1000)))
        cat.close_stdin()
        assert cat.wait().stdout == "".join(f"{number}\n" for number in range(1000))


def test_files():
    with Sandbox.create() as sandbox:
        files = sandbox.files
        assert files.write("a/b/text", "hello ü").path == "/home/user/a/b/text"
        assert files.read("a/b/text") == "hello ü"
        assert bytes(files.read("/home/user/a/b/text", format="bytes")) == "hello ü".encode()
        assert files.write("stream", io.BytesIO(b"x" * 5_000_000)).name == "stream"
        assert sum(map(len, files.read("stream", format="stream"))) == 5_000_000
        assert files.write("packed", "z" * 100_000, gzip=True).name == "packed"
        assert files.read("packed", gzip=True) == "z" * 100_000
        odd = 'with "quotes", spaces and \\ ü.txt'
        written = files.write_files([{"path": odd, "data": "1"}, {"path": "/tmp/x/y", "data": b"\x00\xff"}])
        assert [each.path for each in written] == [f"/home/user/{odd}", "/tmp/x/y"]
        assert files.read(odd) == "1"
        assert bytes(files.read("/tmp/x/y", format="bytes")) == b"\x00\xff"
        with pytest.raises(FileNotFoundException):
            files.read("missing")
        with pytest.raises(InvalidArgumentException):
            files.read("a")
        with pytest.raises(SandboxException, match="metadata"):
            files.write("labelled", "x", metadata={"colour": "blue"})

        sandbox.commands.run("ln -s text a/b/link; ln -s nowhere a/b/broken; chmod 750 a/b/text; mkfifo a/b/pipe")
        listed = {each.name: each for each in files.list("a", depth=2)}
        assert sorted(listed) == ["b", "link", "text"]
        assert (listed["text"].permissions, listed["text"].mode, listed["text"].size) == ("-rwxr-x---", 0o750, 8)
        assert (listed["text"].owner, listed["text"].group) == ("user", "user")
        assert listed["link"].symlink_target == "text"
        assert listed["b"].type.value == "dir"
        assert files.get_info("a/b").path == "/home/user/a/b"
        assert (files.exists("a/b/text"), files.exists("a/b/other")) == (True, False)
        assert (files.make_dir("d/e"), files.make_dir("d/e")) == (True, False)
        assert files.rename("a/b/text", "new/place/text").path == "/home/user/new/place/text"
        files.remove("new")
        files.remove("new")
        assert not files.exists("new/place/text")
        with pytest.raises(NotFoundException):
            files.list("nowhere")
        with pytest.raises(InvalidArgumentException):
            files.list("stream")


def events_until(watcher, last):
    events = []
    while not events or (events[-1].name, events[-1].type.value) != last:
        events += watcher.get_new_events()
    return [(each.name, each.type.value) for each in events if each.type.value != "write"]


def test_watching():
    with Sandbox.create() as sandbox:
        sandbox.files.make_dir("w/below")
        watcher = sandbox.files.watch_dir("w", recursive=True)
        sandbox.commands.run("cd w; touch below/a; mv below/a b; rm b")
        assert events_until(watcher, ("b", "remove")) == [
            ("below/a", "create"),
            ("below/a", "rename"),
            ("b", "create"),
            ("b", "remove"),
        ]
        watcher.stop()
        with pytest.raises(SandboxException):
            watcher.get_new_events()
        with pytest.raises(FileNotFoundException):
            sandbox.files.watch_dir("nowhere")


def fetch(url, data=None):
    return urllib.request.urlopen(urllib.request.Request(url, data)).read()


def test_signed_urls():
    with Sandbox.create() as sandbox:
        sandbox.files.write("text", "signed")
        assert fetch(sandbox.download_url("text")) == b"signed"
        url = sandbox.download_url("text", use_signature_expiration=1000)
        assert fetch(url) == b"signed"
        for wrong in (
            url.replace("path=text", "path=other"),
            url.replace("signature_expiration=", "signature_expiration=9"),
        ):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                fetch(wrong)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(sandbox.download_url("text", use_signature_expiration=-10))
        body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nup\r\n--b--\r\n'
        request = urllib.request.Request(sandbox.upload_url("uploaded"), body)
        request.add_header("Content-Type", "multipart/form-data; boundary=b")
        urllib.request.urlopen(request).close()
        assert sandbox.files.read("uploaded") == "up"


def test_terminal():
    with Sandbox.create() as sandbox:
        shown = []
        terminal = sandbox.pty.create(PtySize(rows=30, cols=90), envs={"PS1": "$ "}, timeout=60)
        sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=100))
        sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $((6*7)); tty; exit 5\n")
        with pytest.raises(CommandExitException) as ended:
            terminal.wait(on_pty=shown.append)
        text = b"".join(shown).decode()
        assert ended.value.exit_code == 5
        assert "40 100" in text
        assert "42\r\n" in text
        assert "/dev/pts/" in text
        other = sandbox.pty.create(PtySize(rows=24, cols=80))
        assert sandbox.pty.kill(other.pid)
        assert not sandbox.pty.kill(other.pid)


def visit(request):
    try:
        return 200, urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_ports():
    with Sandbox.create() as sandbox:
        sandbox.files.write("site/index.html", "served from inside")
        host = sandbox.get_host(8000)
        assert host.startswith(f"8000-{sandbox.sandbox_id}.localhost:")
        port = host.rpartition(":")[2]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
        status, text = visit(request)
        assert status == 502
        assert "port is not open" in text
        serving = sandbox.commands.run("python3 -u -m http.server 8000 -d site", background=True, timeout=0)
        for stdout, _, _ in serving:
            assert stdout.startswith("Serving")
            break
        assert visit(request) == (200, "served from inside")
    with Sandbox.create(network={"allow_public_traffic": False}) as sandbox:
        request.add_header("Host", sandbox.get_host(8000))
        assert visit(request)[0] == 403
        request.add_header("E2B-Traffic-Access-Token", sandbox.traffic_access_token)
        assert visit(request)[0] == 502


def test_network():
    with Sandbox.create(network={"deny_out": [ALL_TRAFFIC], "allow_out": ["api.example.org"]}) as sandbox:
        assert sandbox.get_info().allow_internet_access is True
        sandbox.update_network({"deny_out": [ALL_TRAFFIC]})
        assert sandbox.get_info().allow_internet_access is False


def test_git():
    with Sandbox.create() as sandbox:
        git = sandbox.git
        git.init("repository", initial_branch="main")
        git.configure_user("A", "a@example.org", scope="local", path="repository")
        sandbox.files.write("repository/file", "content")
        assert [each.name for each in git.status("repository").file_status] == ["file"]
        git.add("repository")
        git.commit("repository", "first")
        assert git.status("repository").file_status == []
        git.create_branch("repository", "other")
        assert git.branches("repository").current_branch == "other"
        git.checkout_branch("repository", "main")
        git.delete_branch("repository", "other", force=True)
        assert git.branches("repository").branches == ["main"]

        git.init("shared", bare=True, initial_branch="main")
        git.remote_add("repository", "origin", "/home/user/shared")
        git.push("repository", remote="origin", branch="main")
        git.clone("/home/user/shared", path="copy")
        assert sandbox.files.read("copy/file") == "content"
        sandbox.files.write("copy/file", "changed")
        git.restore("copy", paths=["file"])
        assert sandbox.files.read("copy/file") == "content"
        with pytest.raises(CommandExitException):
            git.clone("/home/user/missing", path="none")


if __name__ == "__main__":
    began = time.monotonic()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    assert Sandbox.list().next_items() == []
    print("all is well")
