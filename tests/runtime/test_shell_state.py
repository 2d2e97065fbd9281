"""A shell's state survives the way through a snapshot into a fresh bash."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.shell_exports import environment

from cove import shell as shell_files
from cove.agent import shell_state
from cove.agent.protocol import COPY, PROCESS, SESSION
from cove.agent.shell_state import BadSnapshot, declarations
from cove.core.session_script import apply_script, check_script, process_invocation, quote, set_script

PROLOGUE = Path(shell_files.__file__).parent / "session.bash"
ENVIRONMENT = {"HOME": "/home", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        (path / "state").symlink_to("/proc/self/fd/1")
        yield path


def take(folder: Path, script: bytes, env: dict[str, str] = ENVIRONMENT) -> bytes:
    """The snapshot of a bash that has executed the script."""
    (folder / "script").write_bytes(script)
    command = f'. {folder}/script >/dev/null 2>&1; \\builtin exec 2>/dev/null; __cove_snapshot "$@"'
    ours = {"BASH_ENV": str(PROLOGUE), "__cove_directory": str(folder)}
    return subprocess.run(
        ["bash", "-c", command], env={**env, **ours}, cwd="/", stdout=subprocess.PIPE, check=False
    ).stdout


def script(folder: Path, text: bytes) -> bytes:
    """What a fresh bash executes to become as one that has executed the text."""
    return shell_state.script(take(folder, text), SESSION)


TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["", " ", "'", '"', "\\", "\n", "a\nb\n", "$(id)", "`id`", "$'x'", "!", "*", "~", "\t", "\x01", "-n"]
    ),
    st.binary(max_size=6).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
)
NAMES = st.from_regex(r"\A[a-z][a-z_0-9]{0,8}\Z").map(lambda name: f"v_{name}")
FLAGS = st.sampled_from(["", "-x", "-i", "-l", "-u", "-r", "-xr", "-t", "-ix", "-lx", "-ur"])


@st.composite
def variables(draw: st.DrawFn) -> str:
    flags = draw(FLAGS)
    kind = draw(st.sampled_from(["scalar", "array", "map", "unset", "nameref"]))
    name = f"{draw(NAMES)}_{kind}{flags.replace('-', '_')}"
    value = str(draw(st.integers(-100, 100))) if "i" in flags else draw(TEXT)
    if kind == "scalar":
        return f"declare {flags} {name}={quote(value)}"
    if kind == "array":
        numbers = draw(st.lists(st.integers(0, 50), max_size=4, unique=True))
        return f"declare -a {flags} {name}=({' '.join(f'[{number}]={quote(value)}' for number in numbers)})"
    if kind == "map":
        keys = draw(st.lists(TEXT.filter(bool), max_size=4, unique=True))
        return f"declare -A {flags} {name}=({' '.join(f'[{quote(key)}]={quote(value)}' for key in keys)})"
    return f"declare {flags} {name}" if kind == "unset" else f"declare -n n_{name}={name}"


FUNCTIONS = st.sampled_from(
    [
        "f() { echo a; }",
        "f() { echo \"$1\" 'it\"s' $'\\n'; }",
        "f() { cat <<E\nbody $1\n}\nE\n}",
        "f() { cat <<'E'\n$body\nE\necho x; }",
        "f() ( cd /; echo sub )",
        "f() { case $1 in a|b) echo x;; *) echo y;; esac; }",
        "f() { for ((i = 0; i < 3; i++)); do echo $i; done; [[ $x =~ ^a.*b$ ]]; }",
        "f() { local a=(1 2); echo ${a[@]:1} ${x//a/b}; } > /dev/null",
        "f-.:@() { echo odd; }",
        "function a/b { echo slash; }",
        "f() { echo x; }; export -f f",
        "f() { echo x; }; readonly -f f",
        "declare() { echo mine; }; set() { echo mine; }; alias() { :; }; trap() { :; }; shopt() { :; }; umask() { :; }",
        "f() { a; }; alias a='echo alias'",
    ]
)
SETTINGS = st.sampled_from(
    [
        "set -f",
        "set -k",
        "set -u",
        "set -a",
        "set -o pipefail",
        "set -o posix",
        "set -C",
        "set -E -T",
        "set +h",
        "set +B",
        "shopt -s nullglob extglob",
        "shopt -u expand_aliases",
        "shopt -s globstar dotglob lastpipe",
        "shopt -s inherit_errexit",
        "umask 027",
        "umask 777",
        "cd /usr",
        "cd /usr; cd /tmp",
        "pushd /usr; pushd /tmp; pushd -n /etc",
        "set -- a 'b c' ''",
        "set -- $'x\\ny'",
        "ulimit -S -n 100",
        "ulimit -S -c 0",
        "unset PATH",
        "unset IFS",
        "IFS=:",
        "export -n PATH",
        "unset PS4 OPTIND HOSTNAME TERM SHLVL",
        "LC_ALL=C",
        "POSIXLY_CORRECT=1",
        "__cove_last=3",
        "GLOBIGNORE='*.x'",
    ]
)
TRAPS = st.builds(
    lambda text, name: f"trap -- {quote(text)} {name}",
    TEXT.filter(lambda text: text.strip() not in ("", "-")),
    st.sampled_from(["EXIT", "USR1", "INT", "ERR", "HUP"]),
)
ALIASES = st.builds(
    lambda name, text: f"alias {name}={quote(text)}",
    st.sampled_from(["ll", "cd", "echo", "builtin", "set", "a.b"]),
    TEXT,
)
LINES = st.lists(st.one_of(variables(), FUNCTIONS, SETTINGS, ALIASES), max_size=8)


@settings(max_examples=60)
@given(lines=LINES, traps=st.lists(TRAPS, max_size=2), errexit=st.booleans())
@example(lines=["declare() { :; }", "alias builtin=exit", "set -o posix"], traps=[], errexit=True)
@example(lines=["pushd /usr; pushd /tmp"], traps=[], errexit=False)
@example(lines=["set -k", "set -o posix"], traps=[], errexit=False)
@example(lines=["set -k", "POSIXLY_CORRECT=1"], traps=[], errexit=False)
@example(lines=["POSIXLY_CORRECT=1", "export A=1", "set -k"], traps=[], errexit=True)
@example(lines=["unset PATH", "unset IFS", "export -n SHLVL"], traps=[], errexit=False)
def test_a_fresh_bash_made_from_a_snapshot_has_the_same_state(
    folder: Path, lines: list[str], traps: list[str], errexit: bool
) -> None:
    is_posix = bool({"set -o posix", "POSIXLY_CORRECT=1"} & set(lines))
    # In POSIX mode such a name ends a shell that is not interactive: there is no state to compare.
    assume(not (is_posix and any(line.startswith(("f-.:@()", "function a/b", "declare()")) for line in lines)))
    text = "\n".join([*lines, *traps, "\\builtin trap - EXIT ERR", "\\builtin set -e" if errexit else ""]).encode(
        "utf-8", "surrogateescape"
    )
    made = script(folder, text)
    assert shell_state.script(take(folder, made, {}), SESSION) == made


def test_everything_bash_owns_and_everything_of_ours_is_left_out(folder: Path) -> None:
    lines = script(folder, b"x=1; f() { :; }").splitlines()
    assert b'declare -- x="1"' in lines
    assert any(line.startswith(b"declare -- IFS=") for line in lines)
    assert not [line for line in lines if b"__cove" in line and line != b"__cove_last=0"]
    assert not [line for line in lines if b"RTMAX-7" in line]
    owned = {b"BASHPID", b"PPID", b"UID", b"RANDOM", b"PWD"}
    assert owned.isdisjoint(line.split(b" ")[2].partition(b"=")[0] for line in lines if line.startswith(b"declare -"))


def test_a_copy_gets_everything_but_the_traps(folder: Path) -> None:
    state = take(folder, b"x=1; f() { :; }; trap 'echo no' EXIT; alias a=b")
    session, copy = shell_state.script(state, SESSION), shell_state.script(state, COPY)
    assert b"echo no" in session
    assert b"echo no" not in copy
    assert {line for line in session.splitlines() if b"trap" not in line} <= set(copy.splitlines())


def test_a_process_gets_no_traps_and_what_it_has_of_its_own(folder: Path) -> None:
    made = shell_state.script(take(folder, b"x=1; trap 'echo no' EXIT; cd /usr"), PROCESS)
    assert b"echo no" not in made
    assert b"__cove" not in made
    assert b"\n\\builtin . /dev/fd/61\n" in made


EMPTY = b"/\0\x000\x000\x000\0"


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"/\0",
        b"/\0\0x\0",
        b"/\0\x000\0-\0",
        b"/\0\x000\x005\0a\0",
        b"/\0\x000\x000\x00999999999999\0a\0",
        EMPTY + b"\0" * 4,
        EMPTY + b"022\0\0\0\0\0" + b"nope\0" + b"\0\0\0",
        EMPTY + b"022\0\0\0\0\0\0" + b"garbage\0" + b"\0\0",
        EMPTY + b"022\0\0\0\0\0\0" + b'declare -- x="\0' + b"\0\0",
        EMPTY + b"022\0\0\0\0\0\0" + b'declare -- x="a" y\0' + b"\0\0",
        EMPTY + b"022\0\0\0\0\0\0" + b"declare -a x=([0]\0" + b"\0\0",
        b"\0" * (shell_state.MOST_FIELDS + 1),
        b"9" * 6000,
    ],
)
def test_a_forged_snapshot_is_refused(forged: bytes) -> None:
    with pytest.raises(BadSnapshot):
        shell_state.script(forged, SESSION)


@given(st.binary(max_size=60))
@example(b'declare -- x="')
@example(b"declare -a x=([")
def test_any_text_is_declarations_or_refused(text: bytes) -> None:
    try:
        list(declarations(text))
    except BadSnapshot:
        return


def test_a_value_that_is_not_quoted_ends_with_its_line() -> None:
    assert list(declarations(b"declare -- x=plain\ndeclare -a y=([0]=a b)")) == [
        (b"x", b"declare -- x=plain"),
        (b"y", b"declare -a y=([0]=a b)"),
    ]


def test_scripts_carry_names_and_values_as_words() -> None:
    assert apply_script(None, {"A": "it's", "B": None}) == "__cove_apply '' 'A=it'\\''s' 'B' || __cove_result=$?"
    assert apply_script("/a b", {}) == "__cove_apply '/a b' || __cove_result=$?"
    assert set_script({"A": ""}) == "__cove_set 'A=' || __cove_result=$?"
    assert check_script({"A": "", "B": None}) == "__cove_check 'A' 'B' || __cove_result=$?"


def test_a_process_gets_its_command_as_any_bash_does_and_what_is_long_by_descriptor() -> None:
    text = process_invocation("echo $x", 9, "/usr", {"A": "b", "C": None})
    assert (text.argv, text.snapshot, text.snapshot_kind) == ((b"/bin/bash", b"-c", b"echo $x"), 9, PROCESS)
    assert text.env == {b"BASH_ENV": b"/dev/fd/62"}
    assert b"\nexport A='b'\nunset -v C\ncd -- '/usr'" in text.files[61]
    assert process_invocation(["echo", "a b"], 9, "/tmp", {}).files[63] == b"echo\0a b\0"
    long = process_invocation("#" * 200_000, 9, "/tmp", {})
    assert long.files[63] == b"#" * 200_000 + b"\0"
    assert len(long.argv[2]) < 1000


@settings(max_examples=40)
@given(values=st.dictionaries(NAMES, TEXT, min_size=1, max_size=4))
def test_exports_are_read_as_bash_means_them(values: dict[str, str]) -> None:
    env = {os.fsencode(name): value.encode("utf-8", "surrogateescape") for name, value in values.items()}
    printed = subprocess.run(["bash", "-c", "declare -px"], env=env, stdout=subprocess.PIPE, check=True).stdout
    found = environment(printed)
    assert {name: found[name] for name in values} == values
