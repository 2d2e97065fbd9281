"""What a sandbox that did not start says of the reason, where bubblewrap says nothing."""

import errno
import os

import pytest

from cove import Limits, SandboxSpec
from cove.runtime.jail_start import guess_reason

pytestmark = pytest.mark.pure


def test_a_call_that_the_kernel_does_not_have_is_told_as_its_age() -> None:
    missing = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    assert guess_reason(missing, SandboxSpec()).startswith("images and mounts need Linux 5.14 or newer")
    assert os.uname().release in guess_reason(missing, SandboxSpec())


def test_an_end_without_a_word_is_told_as_too_little_memory_where_it_is_limited() -> None:
    ended = ConnectionResetError("the agent has ended")
    assert guess_reason(ended, SandboxSpec()) == "the agent has ended"
    assert "16777216 bytes of memory" in guess_reason(ended, SandboxSpec(limits=Limits(memory=16 << 20)))


def test_a_start_that_took_too_long_is_told_as_that() -> None:
    assert guess_reason(TimeoutError(), SandboxSpec()).startswith("it was not ready within 30 s")
