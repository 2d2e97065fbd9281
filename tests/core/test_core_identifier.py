import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.identifier import check_id, check_sandbox_id, new_identifier
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("value", ["a", "0", "a-b", "a--b", "x" * 128, "7abc", "a" + "-" * 126 + "z"])
def test_a_sandbox_id_of_letters_digits_and_inner_hyphens_is_allowed(value: str) -> None:
    assert check_sandbox_id(value) == value


@pytest.mark.parametrize(
    "value", ["", "-a", "a-", "-", "A", "a_b", "a.b", "a/b", "..", "x" * 129, "a\n", "a b", "é", "٣", None, 3, b"a"]
)
def test_any_other_sandbox_id_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValidationFailed) as caught:
        check_sandbox_id(value)  # type: ignore[arg-type]
    assert repr(value) in caught.value.message
    assert caught.value.details["id"] == value


@pytest.mark.parametrize("value", ["a", "A.b_c-d", "-", "_", "a.b", ".a", "a.", "x" * 128])
def test_an_id_of_a_session_process_terminal_or_context_is_allowed(value: str) -> None:
    assert check_id("session", value) == value


@pytest.mark.parametrize("value", ["", ".", "..", "a..b", "../x", "a/b", "a b", "a\0", "a\n", "é", "x" * 129, None, 1])
def test_an_id_that_could_be_a_path_is_refused(value: object) -> None:
    with pytest.raises(ValidationFailed) as caught:
        check_id("session", value)  # type: ignore[arg-type]
    assert "session id" in caught.value.message


@given(length=st.integers(1, 128))
def test_new_ids_are_accepted_everywhere(length: int) -> None:
    value = new_identifier(length)
    assert len(value) == length
    assert check_sandbox_id(value) == check_id("process", value) == value


def test_new_ids_do_not_repeat() -> None:
    assert len({new_identifier() for _ in range(10_000)}) == 10_000
