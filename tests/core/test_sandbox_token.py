"""Tokens of a sandbox: who signed them, and what they are for."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.sandbox_token import (
    LONGEST_SECONDS,
    Grant,
    Kind,
    allows,
    check_expiry,
    check_operations,
    is_signed,
    make_token,
    read_token,
)
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

SECRET = b"secret"
NOW = time.time()
GRANT = Grant(id="x", operations=("terminal", "files.read"), expires=NOW + 60, tenant="a")
KINDS = (
    Kind("terminal", "terminal", is_read=False),
    Kind("connect_terminal", "terminal", is_read=False),
    Kind("read_file", "files", is_read=True),
    Kind("write_file", "files", is_read=False),
    Kind("exec", "exec", is_read=False),
)


def test_a_token_says_what_was_granted_and_holds_for_one_place() -> None:
    shown = read_token(make_token(SECRET, "place", GRANT))
    assert shown is not None
    assert shown.grant == GRANT
    assert is_signed(shown, SECRET, "place", NOW)
    assert not is_signed(shown, SECRET, "other", NOW)
    assert not is_signed(shown, b"other", "place", NOW)
    assert not is_signed(shown, SECRET, "place", NOW + 61)


@given(st.integers(min_value=6), st.characters(codec="ascii"))
def test_whatever_is_changed_spoils_it(place: int, character: str) -> None:
    token = make_token(SECRET, "place", GRANT)
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    shown = read_token(changed)
    assert changed == token or shown is None or not is_signed(shown, SECRET, "place", NOW) or shown.payload in token


@given(st.text())
def test_what_is_no_token(text: str) -> None:
    assert read_token(text) is None
    assert read_token(f"covet_{text}.{'a' * 43}") is None or text.isascii()


def test_payloads_that_are_no_grant() -> None:
    for payload in ("e30", "bm8", "_w", "a", "a" * 5000):
        assert read_token(f"covet_{payload}.{'a' * 43}") is None


def test_an_operation_is_allowed_by_its_name_its_family_or_as_one_that_reads() -> None:
    allowed = [kind.name for kind in KINDS if allows(GRANT, kind)]
    assert allowed == ["terminal", "connect_terminal", "read_file"]
    assert allows(Grant(id="x", operations=("exec",), expires=0), KINDS[-1])


def test_a_token_is_for_operations_that_there_are() -> None:
    assert check_operations(["files", "files.read", "exec", "files"], KINDS) == ("files", "files.read", "exec")
    for wrong in ("files", [], ["nothing"], ["exec.read"], ["exec"] * 65):
        with pytest.raises(ValidationFailed):
            check_operations(wrong, KINDS)


def test_a_token_ends() -> None:
    assert check_expiry(LONGEST_SECONDS) == LONGEST_SECONDS
    for wrong in (0, -1, LONGEST_SECONDS + 1, float("nan"), float("inf")):
        with pytest.raises(ValidationFailed):
            check_expiry(wrong)


def test_a_token_has_a_size() -> None:
    with pytest.raises(ValidationFailed):
        make_token(SECRET, "place", Grant(id="x", operations=("a" * 4000,), expires=0))
