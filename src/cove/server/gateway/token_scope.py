"""Sort the operations of a sandbox for tokens: into families, and into those that only read."""

from typing import Final

from cove.core.sandbox_token import Kind
from cove.wire.operation import ROOT, AnyOperation, Form
from cove.wire.operations import CREATE_TOKEN, OPERATIONS
from cove.wire.target import Target

_FAMILIES: Final = {
    "": "sandbox",
    "terminals": "terminal",
    "processes": "process",
    "sessions": "session",
    "contexts": "code",
    "run_code": "code",
    "stream_code": "code",
}
_BOTH_WAYS: Final = (Form.WEBSOCKET, Form.TCP)
_BY_POST: Final = (Target.FILES, Target.GIT)


def kind_of(operation: AnyOperation) -> Kind:
    """Return an operation as tokens know it."""
    segment = operation.path.strip("/").partition("/")[0]
    reads = operation.verb == "GET" and operation.form not in _BOTH_WAYS
    reads_by_post = operation.target in _BY_POST and operation.repeatable
    return Kind(operation.name, _FAMILIES.get(segment, segment), reads or reads_by_post)


# Of one sandbox; a token makes no other tokens.
GRANTABLE: Final = tuple(row for row in OPERATIONS if row.paths[0].startswith(ROOT) and row is not CREATE_TOKEN)
KINDS: Final = {row.name: kind_of(row) for row in GRANTABLE}
