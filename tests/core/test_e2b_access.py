"""Tokens, signatures and names of E2B's protocol."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.e2b_access import (
    TokenKind,
    Tokens,
    decode_key,
    is_expired,
    is_signature,
    parse_host,
    sign_file,
)
from cove.core.identifier import check_sandbox_id

pytestmark = pytest.mark.pure


@given(st.text(), st.text(), st.text(), st.text())
def test_a_token_is_for_one_sandbox_and_one_purpose(id: str, key: str, other_id: str, other_key: str) -> None:
    tokens = Tokens(b"secret")
    token = tokens.make(TokenKind.ACCESS, id, key)
    assert tokens.check(token, TokenKind.ACCESS, id, key)
    assert not tokens.check(token, TokenKind.TRAFFIC, id, key)
    assert not Tokens(b"other").check(token, TokenKind.ACCESS, id, key)
    if (id, key) != (other_id, other_key):
        is_same = [part.encode("utf-8", "replace") for part in (id, key)] == [
            part.encode("utf-8", "replace") for part in (other_id, other_key)
        ]
        assert tokens.check(token, TokenKind.ACCESS, other_id, other_key) is is_same


def test_a_key_of_a_client_always_gives_the_same_id() -> None:
    tokens = Tokens(b"secret")
    assert tokens.id_for("once", "") == tokens.id_for("once", "") != tokens.id_for("twice", "")
    assert len(check_sandbox_id(tokens.id_for("once", "a"))) == 26


def test_a_key_of_a_client_gives_each_tenant_another_id() -> None:
    tokens = Tokens(b"secret")
    keys = [("once", ""), ("once", "a"), ("once", "b"), ("oncea", ""), ("a", "once")]
    assert tokens.id_for("once", "") == "tldzdpw5ngeslxu3zcrnoa2qjk"  # clients of the server's own key know theirs
    assert len({tokens.id_for(key, tenant) for key, tenant in keys}) == len(keys)


def test_a_signature_is_what_clients_compute() -> None:
    digest = base64.b64encode(hashlib.sha256(b"a/b:read:user:TOKEN:99").digest()).decode().rstrip("=")
    signed = sign_file("a/b", "read", "user", "TOKEN", "99")
    assert signed == f"v1_{digest}"
    assert is_signature(signed)
    assert signed != sign_file("a/b", "read", "user", "TOKEN", None)
    assert not is_signature("v1_short")


@pytest.mark.parametrize(
    ("expiry", "expected"),
    [
        (None, False),
        ("100", False),
        ("99", True),
        ("", True),
        ("-1", True),
        ("1e9", True),
        ("9" * 16, True),
        ("٣", True),
    ],
)
def test_a_signature_expires(expiry: str | None, expected: bool) -> None:
    assert is_expired(expiry, 100.0) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("8000-abc.localhost:8787", (8000, "abc")),
        ("49983-My-Sandbox.x.example", (49983, "my-sandbox")),
        ("8000-abc", None),
        ("0-abc.x", None),
        ("65536-abc.x", None),
        ("abc.x", None),
        ("8000-.x", None),
        ("127.0.0.1:8787", None),
    ],
)
def test_a_host_name_names_a_port_and_a_sandbox(host: str, expected: tuple[int, str] | None) -> None:
    assert parse_host(host) == expected


def test_a_key_can_be_written_in_hexadecimal_digits() -> None:
    assert decode_key("e2b_" + b"secret-key".hex()) == "secret-key"
    assert decode_key("secret-key") == "secret-key"
    assert decode_key("e2b_xyz") == "e2b_xyz"
    assert decode_key("e2b_ff") == "e2b_ff"
