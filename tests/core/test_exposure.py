"""Exposed ports: what may name one, and who may reach it."""

import pytest

from cove.core.exposure import Exposure, Label, is_exposed, make_exposure, parse_label
from cove.core.identifier import new_identifier
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

KEY = "abcdefghij23"


def test_without_a_token_every_exposure_has_one_of_its_own() -> None:
    tokens = {make_exposure(8080, None, None).token for _ in range(20)}
    assert len(tokens) == 20
    assert all(len(token) == 24 for token in tokens)


def test_a_name_and_a_token_are_kept_as_they_are() -> None:
    assert make_exposure(80, "web server", "my_token_1") == Exposure(port=80, token="my_token_1", name="web server")


@pytest.mark.parametrize("token", ["", "A", "a-b", "a.b", "x" * 41, "é", "a\n", 5])
def test_a_token_that_cannot_stand_in_a_host_name_is_refused(token: object) -> None:
    with pytest.raises(ValidationFailed, match="token"):
        make_exposure(80, None, token)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 129, 5])
def test_a_name_that_is_empty_long_or_no_string_is_refused(name: object) -> None:
    with pytest.raises(ValidationFailed, match="name"):
        make_exposure(80, name, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("port", [0, 65536, True, "80"])
def test_only_a_port_is_exposed(port: object) -> None:
    with pytest.raises(ValidationFailed, match="port"):
        make_exposure(port, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["t", "x" * 40, None])
def test_a_label_is_read_as_it_was_written_and_fits_dns(token: str | None) -> None:
    exposure, key = make_exposure(65535, None, token), new_identifier()
    label = exposure.label(key)
    assert len(label) <= 63
    assert parse_label(label) == Label(65535, key, exposure.token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "www",
        f"080-{KEY}-t",
        f"0-{KEY}-t",
        f"123456-{KEY}-t",
        f"80-{KEY}",
        f"80-{KEY}-",
        f"80-{KEY}x-t",
        f"80-{KEY}-T",
    ],
)
def test_any_other_host_name_is_no_label(text: str) -> None:
    assert parse_label(text) is None


def test_a_port_is_reached_with_its_own_token_only() -> None:
    exposures = [make_exposure(80, None, "one"), make_exposure(81, None, "two")]
    assert is_exposed(exposures, 80, "one")
    assert not is_exposed(exposures, 80, "two")
    assert not is_exposed(exposures, 82, "one")
    assert not is_exposed(exposures, 80, "é")


def test_what_stands_for_no_token_opens_nothing() -> None:
    assert not is_exposed([], 80, "-" * 24)
