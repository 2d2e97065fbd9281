"""Lines that a session's shell executes for the runtime: nothing of a caller's text is parsed by bash."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.command import MAX_ENTRY_BYTES, OWN_DESCRIPTOR, RUN_SCRIPT, SCRIPT_DESCRIPTOR, STATE_DESCRIPTOR
from cove.core.session_script import apply_script, check_script, enter_script, process_invocation, quote, set_script

pytestmark = pytest.mark.pure

HOSTILE = "a'b; $(id) `id` \"\\\n--"
TAIL = ["||", "__cove_result=$?"]


@given(st.text())
def test_a_quoted_text_is_one_word_and_exactly_that_text(text: str) -> None:
    assert shlex.split(quote(text)) == [text]


def test_directory_and_variables_of_a_call_are_single_words() -> None:
    script = apply_script(HOSTILE, {"A": HOSTILE, "B": None})
    assert shlex.split(script) == ["__cove_apply", HOSTILE, f"A={HOSTILE}", "B", *TAIL]


def test_without_a_directory_none_is_entered() -> None:
    assert shlex.split(apply_script(None, {})) == ["__cove_apply", "", *TAIL]


def test_variables_are_set_unset_and_checked_by_name() -> None:
    env = {"A": HOSTILE, "B": None}
    assert shlex.split(enter_script(HOSTILE)) == ["__cove_enter", HOSTILE, *TAIL]
    assert shlex.split(set_script(env)) == ["__cove_set", f"A={HOSTILE}", "B", *TAIL]
    assert shlex.split(check_script(env)) == ["__cove_check", "A", "B", *TAIL]


def own_script(command: str | list[str]) -> list[str]:
    invocation = process_invocation(command, 7, "/w", {})
    return invocation.files[OWN_DESCRIPTOR].decode().splitlines()


def test_a_process_runs_the_command_as_bash_does_with_the_state_as_its_startup_file() -> None:
    invocation = process_invocation("echo 'a'", 7, "/", {})
    assert invocation.argv == (b"/bin/bash", b"-c", b"echo 'a'")
    assert invocation.env == {b"BASH_ENV": b"/dev/fd/%d" % STATE_DESCRIPTOR}
    assert invocation.snapshot == 7
    assert set(invocation.files) == {OWN_DESCRIPTOR}


def test_a_process_has_the_variables_and_the_directory_of_its_call() -> None:
    invocation = process_invocation("true", 7, HOSTILE, {"A": HOSTILE, "B": None})
    words = shlex.split(invocation.files[OWN_DESCRIPTOR].decode())
    assert words[:2] == ["exec", f"{OWN_DESCRIPTOR}<&-"]
    assert f"A={HOSTILE}" in words
    assert words[words.index("unset") :][:3] == ["unset", "-v", "B"]
    assert words[words.index("cd") :][:3] == ["cd", "--", HOSTILE]


def test_the_words_of_a_program_are_never_parsed() -> None:
    invocation = process_invocation(["printf", HOSTILE, ""], 7, "/", {})
    assert invocation.files[SCRIPT_DESCRIPTOR] == b"printf\0" + HOSTILE.encode() + b"\0\0"
    assert HOSTILE.encode() not in b"".join(invocation.argv) + invocation.files[OWN_DESCRIPTOR]
    assert str(SCRIPT_DESCRIPTOR) in own_script(["true"])[-1]


def test_a_command_that_linux_cannot_pass_as_an_argument_goes_by_descriptor() -> None:
    longest = "#" * (MAX_ENTRY_BYTES - 1)
    assert process_invocation(longest, 7, "/", {}).argv[-1] == longest.encode()
    longer = process_invocation(longest + "#", 7, "/", {})
    assert longer.argv[-1] == RUN_SCRIPT.encode()
    assert longer.files[SCRIPT_DESCRIPTOR] == (longest + "#").encode() + b"\0"
    assert str(SCRIPT_DESCRIPTOR) in own_script(longest + "#")[-1]


def test_bytes_that_are_not_utf_8_reach_bash_as_they_are() -> None:
    invocation = process_invocation("ls a\udcff", 7, "/\udc80", {})
    assert invocation.argv[-1] == b"ls a\xff"
    assert b"/\x80" in invocation.files[OWN_DESCRIPTOR]
