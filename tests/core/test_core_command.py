import math
from collections.abc import Callable

import pytest

from cove.core.command import (
    DEFAULT_MAX_OUTPUT,
    MAX_ENTRY_BYTES,
    SCRIPT_DESCRIPTOR,
    build_invocation,
    check_environment,
    check_input,
    check_max_output,
    check_stdin,
    check_timeout,
    encode_environment,
    merge_environment,
)
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure


def invocation_of(command: object, cwd: object = "/", env: dict[str, str] | None = None) -> object:
    return build_invocation(command, cwd=cwd, env=env or {})  # type: ignore[arg-type]


def test_a_string_is_run_by_bash_and_is_never_changed_on_the_way() -> None:
    line = "echo 'a  b' \\\n# x"
    invocation = build_invocation(line, cwd="/w", env={"A": "1"})
    assert line.encode() in invocation.argv
    assert invocation.argv[1] == b"-c"
    assert invocation.files == {}
    assert invocation.cwd == b"/w"
    assert invocation.env == {b"A": b"1"}


def test_a_list_is_run_as_it_is() -> None:
    assert build_invocation(("printf", "%s", "a b"), cwd="/", env={}).argv == (b"printf", b"%s", b"a b")


def test_a_command_goes_by_descriptor_as_soon_as_linux_cannot_pass_it_as_an_argument() -> None:
    longest = "#" * (MAX_ENTRY_BYTES - 1)
    assert build_invocation(longest, cwd="/", env={}).files == {}
    longer = build_invocation(longest + "#", cwd="/", env={})
    assert longer.files == {SCRIPT_DESCRIPTOR: (longest + "#").encode()}
    assert all(len(word) < 1000 for word in longer.argv)
    assert str(SCRIPT_DESCRIPTOR).encode() in longer.argv[2]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ([], "at least the program"),
        ([""], "at least the program"),
        (None, "NoneType"),
        (3, "int"),
        (b"ls", "bytes"),
        ({"ls": 1}, "dict"),
        (["ls", 1], "command[1] must be a string"),
        (["ls", b"x"], "command[1] must be a string"),
        ("a\0b", "command contains a NUL"),
        (["ls", "a\0b"], "command[1] contains a NUL"),
        (["ls", "x" * MAX_ENTRY_BYTES], "command[1] is over 128 KiB"),
        ("\ud800", "UTF-8"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_with_the_reason(command: object, part: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        invocation_of(command)
    assert part in caught.value.message


@pytest.mark.parametrize("cwd", ["a\0b", 3, b"/tmp", "\ud800"])
def test_a_cwd_that_is_no_path_is_refused(cwd: object) -> None:
    with pytest.raises(ValidationFailed, match="cwd"):
        invocation_of("true", cwd)


def test_bytes_that_are_not_utf_8_survive_in_names_from_the_file_system() -> None:
    assert build_invocation(["cat", "a\udcff"], cwd="/\udc80", env={}).argv[1] == b"a\xff"


def test_later_environments_win_and_none_unsets() -> None:
    merged = merge_environment({"A": "1", "B": "2", "C": "3"}, None, {"A": "x", "B": None, "Z": None})
    assert merged == {"A": "x", "C": "3"}


@pytest.mark.parametrize("name", ["", "1A", "A=B", "A B", "A-B", "A.B", "é", "A\0", "A\n", 1, None])
def test_an_invalid_variable_name_is_refused_by_name(name: object) -> None:
    with pytest.raises(ValidationFailed) as caught:
        check_environment({name: "x"})  # type: ignore[dict-item]
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("value", [1, b"x", True, ["x"], "a\0b", "\ud800", "x" * (MAX_ENTRY_BYTES - 2)])
def test_an_invalid_value_is_refused_and_the_variable_is_named(value: object) -> None:
    with pytest.raises(ValidationFailed, match="environment variable V"):
        check_environment({"V": value})  # type: ignore[dict-item]


def test_the_longest_entry_linux_passes_is_allowed() -> None:
    value = "x" * (MAX_ENTRY_BYTES - len("V=") - 1)
    assert check_environment({"V": value}) == {"V": value}


def test_an_environment_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="mapping"):
        check_environment(["A=1"])  # type: ignore[arg-type]


def test_an_environment_is_encoded_byte_for_byte() -> None:
    assert encode_environment({"A": "é", "B": "\udcff"}) == {b"A": "é".encode(), b"B": b"\xff"}


@pytest.mark.parametrize(("given", "meant"), [(None, None), (0, 0.0), (1, 1.0), (2.5, 2.5), (math.inf, None)])
def test_a_timeout_is_a_number_of_seconds_or_none(given: float | None, meant: float | None) -> None:
    assert check_timeout(given) == meant


@pytest.mark.parametrize("timeout", [-1, -0.1, math.nan, -math.inf, "1", True, b"1"])
def test_any_other_timeout_is_refused(timeout: object) -> None:
    check: Callable[[object], object] = check_timeout  # type: ignore[assignment]
    with pytest.raises(ValidationFailed, match="timeout"):
        check(timeout)


@pytest.mark.parametrize(("given", "meant"), [(None, DEFAULT_MAX_OUTPUT), (0, 0), (5, 5)])
def test_how_much_output_is_kept_has_a_default(given: int | None, meant: int) -> None:
    assert check_max_output(given) == meant


@pytest.mark.parametrize("value", [-1, True, 1.5, "1"])
def test_any_other_number_of_output_bytes_is_refused(value: object) -> None:
    with pytest.raises(ValidationFailed, match="max_output"):
        check_max_output(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "meant"), [(None, None), (b"\xff", b"\xff"), ("é\udcff", b"\xc3\xa9\xff"), ("", b"")]
)
def test_input_is_bytes_or_text(given: bytes | str | None, meant: bytes | None) -> None:
    assert check_stdin(given) == meant


@pytest.mark.parametrize("stdin", ["\ud800", 5, ["a"], bytearray(b"a")])
def test_any_other_input_is_refused(stdin: object) -> None:
    with pytest.raises(ValidationFailed, match="stdin"):
        check_stdin(stdin)  # type: ignore[arg-type]


def test_a_running_process_is_written_something() -> None:
    assert check_input("a") == b"a"
    with pytest.raises(ValidationFailed, match="nothing to write"):
        check_input(None)  # type: ignore[arg-type]
