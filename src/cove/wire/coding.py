"""Encode and decode values as JSON and as query strings, also with file names that are not UTF-8."""

import json
import re
from typing import TypeVar, get_args
from urllib.parse import parse_qsl, quote, quote_from_bytes, unquote_to_bytes

import msgspec

from cove.errors import ValidationFailed
from cove.wire.unknown_fields import check_fields, holds_model, is_struct

T = TypeVar("T")

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(\w+)`")
_encoder = msgspec.json.Encoder(enc_hook=str)


def encode_json(value: object) -> bytes:
    """JSON; a name that is not UTF-8 has escaped surrogates, as Python's own `json` writes them."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()


def decode_json(data: bytes, type: type[T], what: str = "the body") -> T:
    """The value, or ValidationFailed with what is wrong with it."""
    try:
        value = msgspec.json.decode(data, type=type)
        if holds_model(type):
            check_fields(value, msgspec.json.decode(data))
        return value
    except msgspec.ValidationError as error:
        raise ValidationFailed(_explained(error, type)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data, type, what)


def _decode_leniently(data: bytes, type: type[T], what: str) -> T:
    """msgspec refuses lone surrogates; Python's decoder does not. Those that stand for bytes of a name are taken."""
    try:
        raw = json.loads(data)
        json.dumps(raw, ensure_ascii=False).encode("utf-8", "surrogateescape")
        value = msgspec.convert(raw, type)
        if holds_model(type):
            check_fields(value, raw)
        return value
    except msgspec.ValidationError as error:
        raise ValidationFailed(_explained(error, type)) from None
    except (ValueError, RecursionError):
        raise ValidationFailed(f"{what} is not valid JSON") from None


def _explained(error: msgspec.ValidationError, kind: object) -> str:
    """Say what is wrong; of a field that belongs one level deeper, also where."""
    text = str(error)
    unknown = _UNKNOWN_FIELD.fullmatch(text)
    if unknown is None or not is_struct(kind):
        return text
    for field in msgspec.structs.fields(kind):
        if unknown[1] in getattr(field.type, "__struct_fields__", ()):
            return f"{text}: it belongs in `{field.name}`"
    return text


def encode_query(value: msgspec.Struct) -> str:
    """The fields that are not at their defaults, as a query string."""
    fields = msgspec.structs.asdict(value)
    defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
    return "&".join(
        f"{name}={quote_text(_plain(item))}"
        for name, item in fields.items()
        if item is not None and item != defaults[name]
    )


def decode_query(query: str, type: type[T]) -> T:
    """The value, or ValidationFailed with what is wrong with it."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape", max_num_fields=100)
        raw = {name: _parsed(type, name, text) for name, text in pairs}
        value = msgspec.convert(raw, type, strict=False)
        if holds_model(type):
            check_fields(value, raw)
        return value
    except msgspec.ValidationError as error:
        raise ValidationFailed(f"in the query: {error}") from None
    except ValueError:
        raise ValidationFailed("the query has too many fields") from None


def quote_text(text: str) -> str:
    """Percent-encoded completely, `/` too; ValidationFailed for what is neither text nor escaped bytes."""
    try:
        return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe="")
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"{text!r} has a character that UTF-8 cannot carry: {error.reason}") from None


def unquote_text(text: str) -> str:
    """Percent-decoded completely; what is not UTF-8 becomes surrogate escapes."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape") if "%" in text else text


def quote_segment(text: str) -> str:
    """One segment of a path; an id that needs no quoting stays as it is."""
    if not isinstance(text, str):
        raise ValidationFailed(f"an id is a string, not {type(text).__name__}")
    return quote(text, safe="", errors="surrogatepass")


def _parsed(kind: object, name: str, text: str) -> object:
    """A field that is no text may be an object, which is JSON in a query."""
    if not text.startswith("{") or not is_struct(kind):
        return text
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    if types.get(name, str) is str or str in get_args(types[name]):
        return text
    return decode_json(text.encode("utf-8", "surrogateescape"), dict[str, object], name)


def _plain(value: object) -> str:
    if isinstance(value, dict | msgspec.Struct):
        return encode_json(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
