"""`cove cp` and `cove watch` against a real server: trees, odd names, pipes, other sandboxes."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import COVE, Cli, cli_of_module, sandbox_of_test

pytestmark = pytest.mark.pure
cove = cli_of_module
sandbox = sandbox_of_test

ODD_NAMES = ("with space", "quote'\"", "new\nline", "ünïcode", "-dash", "a:b", "100%23", b"not-utf8-\xff", "*?[")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Directories, an empty one too, files with odd names and modes, a link."""
    root = tmp_path / "tree"
    (root / "deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    for name in ODD_NAMES:
        (root / "deep" / os.fsdecode(name)).write_bytes(os.fsencode(name) * 3)
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    (root / "deep/er/large").write_bytes(os.urandom(1 << 20) * 3)
    (root / "link").symlink_to("script")
    return root


def contents(root: Path) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for folder, directories, files in os.walk(os.fsencode(root)):
        for name in directories + files:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, os.fsencode(root))
            if os.path.islink(path):
                found[key] = os.readlink(path)
            elif os.path.isdir(path):
                found[key] = "directory"
            else:
                found[key] = (Path(os.fsdecode(path)).read_bytes(), os.stat(path).st_mode & 0o777)
    return found


def test_a_tree_goes_in_and_comes_out_as_it_was(cove: Cli, sandbox: str, tree: Path, tmp_path: Path) -> None:
    assert cove.text("cp", str(tree), f"{sandbox}:/workspace") == ""
    assert cove.text("exec", "--in", sandbox, "cat tree/link; stat -c %a tree/script") == "#!/bin/sh\n755\n"
    assert cove.text("cp", f"{sandbox}:tree", str(tmp_path / "back")) == ""
    assert contents(tmp_path / "back") == contents(tree)


def test_where_something_lands_is_as_with_cp(cove: Cli, sandbox: str, tree: Path, tmp_path: Path) -> None:
    cove.text("cp", str(tree / "script"), f"{sandbox}:")
    cove.text("cp", str(tree / "script"), f"{sandbox}:renamed")
    cove.text("cp", str(tree / "script"), f"{sandbox}:new/")
    cove.text("cp", str(tree), f"{sandbox}:copy")
    cove.text("cp", f"{tree}/.", f"{sandbox}:copy/inner")
    cove.text("cp", f"{tree}/deep", f"{sandbox}:copy/")
    listed = cove.text(
        "exec", "--in", sandbox, "ls -d script renamed new/script copy/script copy/inner/script copy/deep/er"
    )
    assert len(listed.split()) == 6
    (tmp_path / "here").mkdir()
    cove.text("cp", f"{sandbox}:new", str(tmp_path / "here"))
    cove.text("cp", f"{sandbox}:renamed", str(tmp_path / "here"))
    cove.text("cp", f"{sandbox}:copy/inner/.", str(tmp_path / "here"))
    names = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").iterdir()}
    assert {"new", "renamed", "script", "deep", "empty"} <= names


def test_odd_names_are_taken_on_either_side(cove: Cli, sandbox: str, tree: Path, tmp_path: Path) -> None:
    for name in ("new\nline", "a:b", b"not-utf8-\xff"):
        text = os.fsdecode(name)
        cove.text("cp", str(tree / "deep" / text), f"{sandbox}:/tmp/{text}")
        cove.text("cp", f"{sandbox}:/tmp/{text}", str(tmp_path / "file"))
        assert (tmp_path / "file").read_bytes() == os.fsencode(name) * 3


def test_standard_input_and_output_are_files_too(cove: Cli, sandbox: str) -> None:
    data = bytes(range(256)) * 20_000
    assert cove("cp", "-", f"{sandbox}:/tmp/data", stdin=data).returncode == 0
    assert cove("cp", f"{sandbox}:/tmp/data", "-").stdout == data
    end = cove("cp", f"{sandbox}:/tmp", "-")
    assert (end.returncode, end.stdout) == (125, b"")
    assert b"is a directory" in end.stderr


def test_a_tree_and_a_file_go_from_one_sandbox_to_another(cove: Cli, sandbox: str, tree: Path, tmp_path: Path) -> None:
    cove.text("cp", str(tree), f"{sandbox}:tree")
    with cove.sandbox() as other:
        cove.text("cp", f"{sandbox}:tree", f"{other}:/workspace/")
        cove.text("cp", f"{sandbox}:tree/script", f"{other}:alone")
        cove.text("cp", f"{other}:tree", str(tmp_path / "back"))
        assert cove.text("exec", "--in", other, "stat -c %a alone") == "755\n"
    assert contents(tmp_path / "back") == contents(tree)


@pytest.mark.parametrize(
    ("source", "target", "advice"),
    [
        ("here", "there", b"neither side is in a sandbox"),
        ("-", "-", b"neither side is in a sandbox"),
        ("/no/such/file", "SANDBOX:x", b"/no/such/file"),
        ("SANDBOX:/no/such/file", "x", b"/no/such/file"),
        ("/etc/passwd", "SANDBOX:/usr/x", b"/usr/x"),
    ],
)
def test_what_cannot_be_copied_is_named(cove: Cli, sandbox: str, source: str, target: str, advice: bytes) -> None:
    end = cove("cp", source.replace("SANDBOX", sandbox), target.replace("SANDBOX", sandbox))
    assert (end.returncode, end.stdout) == (125, b"")
    assert advice in end.stderr
    assert b"Traceback" not in end.stderr


def test_no_more_than_was_agreed_comes_out(cove: Cli, sandbox: str, tmp_path: Path) -> None:
    cove("exec", "--in", sandbox, "mkdir t; head -c 100000 /dev/zero > t/x; ln -s t/x link; truncate -s 9G bomb")
    here = tmp_path / "here"
    for target in (str(here), "-", f"{sandbox}:/tmp/copy"):
        for source in (f"{sandbox}:t/x", f"{sandbox}:link"):
            done = cove("cp", "--max-bytes", "10K", source, target)
            assert (done.returncode, b"larger max_bytes" in done.stderr) == (125, True), done.stderr
        assert cove("cp", "--max-bytes", "8G", f"{sandbox}:bomb", target).returncode == 125
        if target != "-":
            assert cove("cp", "--max-bytes", "10K", f"{sandbox}:t", target).returncode == 125
    assert not here.exists()
    assert cove("cp", "--max-bytes", "100K", f"{sandbox}:t/x", str(here)).returncode == 0
    assert here.stat().st_size == 100_000


def test_a_link_that_leads_out_of_a_tree_is_refused_here(cove: Cli, sandbox: str, tmp_path: Path) -> None:
    cove.text("exec", "--in", sandbox, "mkdir bad; ln -s ../../../../etc/passwd bad/link")
    end = cove("cp", f"{sandbox}:bad", str(tmp_path / "bad"))
    assert end.returncode == 125
    assert not (tmp_path / "bad").exists()


def test_a_reader_that_goes_away_ends_a_copy_quietly(cove: Cli, sandbox: str) -> None:
    cove.text("exec", "--in", sandbox, "head -c 50M /dev/zero > big")
    with cove.start("cp", f"{sandbox}:big", "-") as program:
        assert program.stdout.read(10) == bytes(10)
        program.stdout.close()
        assert program.wait(60) == 128 + signal.SIGPIPE
        assert program.stderr.read() == b""


def test_on_a_terminal_a_copy_tells_how_far_it_is(cove: Cli, sandbox: str, tree: Path) -> None:
    master, slave = pty.openpty()
    command = [COVE, "cp", str(tree / "deep/er/large"), f"{sandbox}:large"]
    subprocess.run(command, stderr=slave, env={**cove.environment, "TERM": "xterm"}, timeout=60, check=True)
    os.close(slave)
    seen = os.read(master, 65536)
    os.close(master)
    assert b"large" in seen
    assert b"3.1" in seen
    assert b"MB" in seen


def test_watch_prints_what_changes_until_ctrl_c(cove: Cli, sandbox: str) -> None:
    with cove.start("watch", sandbox, ".") as program:
        assert program.stdout.readline() == b"watching  /workspace/\n"
        cove.text("exec", "--in", sandbox, "touch $'a\\nb'; mkdir .git; touch .git/x; mv $'a\\nb' c")
        assert program.stdout.readline() == b"create    /workspace/a\\nb\n"
        lines = [program.stdout.readline()]
        while not lines[-1].startswith(b"move"):
            lines.append(program.stdout.readline())
        assert lines[-1] == b"move      /workspace/a\\nb -> /workspace/c\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
        assert program.stderr.read() == b""


def test_watch_gives_json_on_lines_and_chooses_by_pattern(cove: Cli, sandbox: str) -> None:
    with cove.start("watch", "--json", "--include", "*.py", sandbox, "/workspace") as program:
        assert json.loads(program.stdout.readline())["kind"] == "watching"
        cove.text("exec", "--in", sandbox, "touch a.txt b.py")
        event = json.loads(program.stdout.readline())
        assert (event["kind"], event["path"]) == ("create", "/workspace/b.py")
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM


def test_watch_ends_when_what_it_watches_is_gone_or_nobody_reads(cove: Cli, sandbox: str) -> None:
    cove.text("exec", "--in", sandbox, "mkdir d")
    with cove.start("watch", sandbox, "d") as program:
        program.stdout.readline()
        cove.text("exec", "--in", sandbox, "rmdir d")
        assert program.wait(60) == 0
    with cove.start("watch", sandbox) as program:
        program.stdout.readline()
        program.stdout.close()
        while program.poll() is None:
            cove.text("exec", "--in", sandbox, "date > changing")
        assert program.returncode == 128 + signal.SIGPIPE
    assert cove("watch", sandbox, "/nowhere").returncode == 125


# Copies to the clipboard of the terminal, clears it, turns it red, in one byte as well: C0 and C1 controls.
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202e"
ESCAPED = "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x9b31m\\u202e"


def obeyed(output: bytes) -> list[str]:
    """What of it a terminal, or a reader, would obey."""
    return [character for character in output.decode() if not character.isprintable() and character not in "\n\r"]


def test_names_from_inside_reach_no_terminal_as_they_are(cove: Cli, sandbox: str, tmp_path: Path) -> None:
    name = f"name{HOSTILE}"
    cove.text("exec", "--in", sandbox, "--", "mkdir", name)
    cove.text("start", sandbox, "--", "echo", name)
    lines = [
        cove("cp", f"{sandbox}:{name}", "-"),
        cove("cp", f"{sandbox}:{name}/missing", str(tmp_path)),
        cove("cp", str(tmp_path / name), f"{sandbox}:x"),
        cove("run", str(tmp_path / name)),
        cove("run", "file.py", name),
        cove("session", "exec", sandbox, name, "true"),
        cove("ps", sandbox),
    ]
    for end in lines:
        assert ESCAPED.encode() in end.stdout + end.stderr, end
        assert obeyed(end.stdout + end.stderr) == [], end


def test_json_says_the_same_without_what_a_terminal_obeys(cove: Cli, sandbox: str) -> None:
    cove.text("start", "--id", "hostile", sandbox, "--", "echo", HOSTILE)
    log, table = cove("logs", "-f", "--json", sandbox, "hostile"), cove("ps", "--json", sandbox)
    assert obeyed(log.stdout + table.stdout) == []
    assert json.loads(log.stdout.splitlines()[0])["text"] == f"{HOSTILE}\n"
    assert json.loads(table.stdout)[0]["command"] == ["echo", HOSTILE]


def test_what_a_process_prints_is_shown_as_it_is(cove: Cli, sandbox: str) -> None:
    assert cove("exec", "--in", sandbox, "--", "echo", HOSTILE).stdout.decode() == f"{HOSTILE}\n"
