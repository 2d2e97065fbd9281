"""Refuse unknown fields of a request at every depth: a misspelt rule must not be taken for an absent one.

Values of the model allow unknown fields, so that records and replies of another version can be read. Within a request
they do not.
"""

from functools import cache
from typing import TypeGuard, get_args

import msgspec


def holds_model(kind: object) -> bool:
    """Return whether it is a struct that forbids unknown fields, and holds others."""
    return _holds_model(kind)


@cache
def _holds_model(kind: object) -> bool:
    if not is_struct(kind) or not kind.__struct_config__.forbid_unknown_fields:
        return False
    return any(_is_made_of_structs(field.type) for field in msgspec.structs.fields(kind))


def _is_made_of_structs(annotation: object) -> bool:
    return is_struct(annotation) or any(_is_made_of_structs(part) for part in get_args(annotation))


def is_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    """Return whether it is a class of structs."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def check_fields(value: object, raw: object, path: str = "$") -> None:
    """Raise msgspec.ValidationError for a field in the raw value that its struct does not have."""
    if isinstance(value, msgspec.Struct) and isinstance(raw, dict):
        known = {*value.__struct_encode_fields__, value.__struct_config__.tag_field}
        for name in raw:
            if name not in known:
                raise msgspec.ValidationError(f"Object contains unknown field `{name}` - at `{path}`")
        for name in value.__struct_fields__:
            check_fields(getattr(value, name), raw.get(name), f"{path}.{name}")
    elif isinstance(value, list | tuple) and isinstance(raw, list):
        for at, (part, raw_part) in enumerate(zip(value, raw, strict=True)):
            check_fields(part, raw_part, f"{path}[{at}]")
