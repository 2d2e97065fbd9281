import errno
import os

import pytest

import cove
from cove import errors, model
from cove.errors import CoveError, from_errno
from cove.wire.errors import decode_error, encode_error

pytestmark = pytest.mark.pure

# The codes of the contract that this version raises, and the one that only `check()` has.
STABLE_CODES = {
    "VALIDATION_FAILED",
    "NOT_FOUND",
    "METHOD_NOT_ALLOWED",
    "CONNECTION_LOST",
    "PORT_NOT_EXPOSED",
    "PORT_ALREADY_EXPOSED",
    "PORT_IN_USE",
    "UNAUTHORIZED",
    "PERMISSION_DENIED",
    "SANDBOX_NOT_FOUND",
    "SESSION_NOT_FOUND",
    "PROCESS_NOT_FOUND",
    "TERMINAL_NOT_FOUND",
    "CONTEXT_NOT_FOUND",
    "FILE_NOT_FOUND",
    "PROCESS_READY_TIMEOUT",
    "PROCESS_WAIT_TIMEOUT",
    "SANDBOX_ALREADY_EXISTS",
    "SESSION_ALREADY_EXISTS",
    "PROCESS_ALREADY_EXISTS",
    "CONTEXT_ALREADY_EXISTS",
    "FILE_EXISTS",
    "IS_DIRECTORY",
    "NOT_DIRECTORY",
    "SESSION_TERMINATED",
    "CONTEXT_CRASHED",
    "SANDBOX_DESTROYED",
    "FILE_TOO_LARGE",
    "UNSUPPORTED_LANGUAGE",
    "LIMIT_EXCEEDED",
    "SPAWN_FAILED",
    "PROCESS_EXITED_BEFORE_READY",
    "INTERNAL",
    "SERVICE_NOT_RESPONDING",
    "INTERPRETER_NOT_READY",
    "SANDBOX_UNAVAILABLE",
    "NO_SPACE",
    "GIT_NOT_FOUND",
    "GIT_BRANCH_NOT_FOUND",
    "GIT_AUTH_FAILED",
    "GIT_BRANCH_EXISTS",
    "GIT_CONFLICT",
    "GIT_REJECTED",
    "GIT_NOTHING_TO_COMMIT",
    "GIT_NETWORK_ERROR",
    "GIT_TIMEOUT",
    "GIT_FAILED",
    "COMMAND_FAILED",
    "NETWORK_DENIED",
    "USER_UNAVAILABLE",
    "IMAGE_INVALID",
    "BUILD_FAILED",
    "API_KEY_ALREADY_EXISTS",
    "API_KEY_NOT_FOUND",
    "BACKUP_EXPIRED",
    "SNAPSHOT_NOT_FOUND",
    "IMAGE_NOT_FOUND",
    "VOLUME_NOT_FOUND",
    "MOUNT_NOT_FOUND",
    "BACKUP_NOT_FOUND",
    "SNAPSHOT_ALREADY_EXISTS",
    "IMAGE_ALREADY_EXISTS",
    "VOLUME_ALREADY_EXISTS",
    "MOUNT_EXISTS",
    "SNAPSHOT_IN_USE",
    "IMAGE_IN_USE",
    "VOLUME_IN_USE",
    "SANDBOX_STOPPED",
    "SANDBOX_PAUSED",
    "TRANSACTION_OPEN",
    "FORK_REFUSED",
    "SECRET_UNAVAILABLE",
    "NODE_LOST",
    "NODE_UNAVAILABLE",
    "NO_CAPACITY",
    "PLACEMENT_UNAVAILABLE",
}
FAMILIES = {"RequestError", "NothingStarted", "MayHaveRun", "AlreadyExists", "InUse", "FileError", "GitError"}


def classes() -> list[type[CoveError]]:
    """The tree. A part of Cove may tell apart what is the same error for a caller: such classes are its own."""
    found, pending = [], [CoveError]
    while pending:
        kind = pending.pop()
        found.append(kind)
        pending += [below for below in kind.__subclasses__() if below.__module__.startswith("cove.errors.")]
    return found


def test_every_error_is_reachable_by_name_from_cove_errors() -> None:
    for kind in classes():
        assert getattr(errors, kind.__name__) is kind


def test_the_codes_are_those_of_the_contract_and_no_two_errors_share_one() -> None:
    codes = [kind.code for kind in classes() if "code" in kind.__dict__]
    assert len(codes) == len(set(codes))
    assert set(codes) == STABLE_CODES


def test_only_families_that_are_never_raised_themselves_have_no_code_of_their_own() -> None:
    without = {kind.__name__ for kind in classes() if "code" not in kind.__dict__}
    assert without == FAMILIES | {"Internal", "Unreachable"}


def test_every_error_stands_in_exactly_one_of_the_four_families() -> None:
    families = (errors.RequestError, errors.NothingStarted, errors.MayHaveRun, errors.Internal)
    for kind in classes():
        if kind is not CoveError:
            assert sum(issubclass(kind, family) for family in families) == 1


@pytest.mark.parametrize("name", ["SessionTerminated", "ProcessExitedBeforeReady"])
def test_an_error_with_facts_carries_them_as_attributes_and_details(name: str) -> None:
    error = getattr(errors, name)("it ended", exit_code=3, output="bye")
    assert (error.exit_code, error.output, error.message) == (3, "bye", "it ended")
    assert error.details == {"exit_code": 3, "output": "bye"}


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (errors.ValidationFailed("x"), False),
        (errors.Unauthorized("x"), False),
        (errors.SandboxStopped("x"), False),
        (errors.SandboxPaused("x"), False),
        (errors.NetworkDenied("x"), False),
        (errors.SecretUnavailable("x"), True),
        (errors.NoSpace("x"), False),
        (errors.GitNetworkError("x"), False),
        (errors.SandboxUnavailable("x"), True),
        (errors.Unreachable("x"), True),
        (errors.NodeUnavailable("x", node="a", since="2026-01-01T00:00:00Z"), True),
        (errors.NoCapacity("x"), True),
        (errors.PlacementUnavailable("x"), True),
        (errors.NodeLost("x", node="a"), True),
        (errors.SpawnFailed("x"), True),
        (errors.InterpreterNotReady("x"), True),
        (errors.ConnectionLost("x"), True),
        (errors.SandboxDestroyed("x"), True),
        (errors.Internal("x"), True),
        (errors.ServiceNotResponding("x"), False),
        (errors.ProcessReadyTimeout("x"), False),
        (errors.CommandFailed("x", outcome="exited", exit_code=1), False),
        (errors.CommandFailed("x", outcome="lost", exit_code=None), True),
        (errors.SessionTerminated("x", exit_code=3), False),
        (errors.SessionTerminated("x", exit_code=None), True),
        (errors.ContextCrashed("x", exit_code=139), False),
        (errors.ContextCrashed("x", exit_code=None), True),
        (errors.ProcessExitedBeforeReady("x", exit_code=1), False),
        (errors.ProcessExitedBeforeReady("x", exit_code=None), True),
        (errors.ProcessExitedBeforeReady("x", exit_code=None, is_ending=True), False),
    ],
)
def test_an_error_says_here_and_over_the_wire_whether_it_is_the_tasks_or_ours(error: CoveError, is_ours: bool) -> None:
    assert error.is_infrastructure_failure is is_ours
    assert decode_error(encode_error(error), 500).is_infrastructure_failure is is_ours


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, errors.FileNotFound),
        (errno.EEXIST, errors.FileExists),
        (errno.EISDIR, errors.IsDirectory),
        (errno.ENOTDIR, errors.NotDirectory),
        (errno.EACCES, errors.PermissionDenied),
        (errno.EPERM, errors.PermissionDenied),
        (errno.EROFS, errors.PermissionDenied),
        (errno.ENOSPC, errors.NoSpace),
        (errno.EDQUOT, errors.NoSpace),
        (errno.EFBIG, errors.FileTooLarge),
        (errno.EINVAL, errors.ValidationFailed),
        (99999, errors.ValidationFailed),
    ],
)
def test_a_kernel_error_becomes_one_of_ours_and_names_its_subject(number: int, kind: type[CoveError]) -> None:
    error = from_errno(number, "/a/file")
    assert type(error) is kind
    assert error.message == f"/a/file: {os.strerror(number)}"
    assert error.details["errno"] == errno.errorcode.get(number, str(number))


def test_every_public_name_exists() -> None:
    for name in cove.__all__:
        assert getattr(cove, name) is not None


def test_every_value_and_every_error_is_public() -> None:
    assert {*errors.__all__, *model.__all__} - set(cove.__all__) == {
        "BuildSpec",
        "ImageMade",
        "Selection",
        "SpecFields",
        "from_errno",
        "make_spec",
    }
