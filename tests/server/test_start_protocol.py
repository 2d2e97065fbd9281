"""Messages to a process that is to become a runtime."""

import pytest

from cove.errors import ValidationFailed
from cove.model import BuildSpec, SandboxSpec
from cove.server.sandboxes.start_protocol import Build, Create, encode

pytestmark = pytest.mark.pure


def test_what_is_no_text_is_refused() -> None:
    for message in (
        Create(id="x", spec=SandboxSpec(env={"A": "\udc80"})),
        Build(spec=BuildSpec(preset="\udced\udca0\udc80")),
    ):
        with pytest.raises(ValidationFailed, match="UTF-8 cannot carry"):
            encode(message)
