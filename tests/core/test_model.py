from datetime import UTC, datetime

import msgspec
import pytest

from cove.errors import CommandFailed, SandboxUnavailable, ValidationFailed
from cove.model import (
    CodeError,
    ExecResult,
    Execution,
    GitChange,
    GitFile,
    GitStatus,
    Isolation,
    Limits,
    Mount,
    Network,
    Outcome,
    ProcessExit,
    ProcessStatus,
    Result,
    SandboxSpec,
    SnapshotInfo,
    TaskResult,
    make_spec,
)
from cove.model.snapshot import check_snapshot_name
from cove.model.spec import check_labels

pytestmark = pytest.mark.pure


def result(**fields: object) -> ExecResult:
    defaults = {"command": "x", "outcome": Outcome.EXITED, "exit_code": 0, "stdout_bytes": b"", "stderr_bytes": b""}
    return ExecResult(**{**defaults, "started_at": datetime.now(UTC), "duration": 0.1, **fields})  # type: ignore[arg-type]


def test_text_is_decoded_with_replacement_and_bytes_stay_exact() -> None:
    got = result(stdout_bytes=b"\xffok\0", stderr_bytes=b"\xe2\x82")
    assert (got.stdout, got.stderr) == ("\ufffdok\0", "\ufffd")
    assert got.stdout_bytes == b"\xffok\0"


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("exit_code", [0, 1, None])
def test_only_an_exit_with_zero_is_ok(outcome: Outcome, exit_code: int | None) -> None:
    got = result(outcome=outcome, exit_code=exit_code)
    assert got.ok == (outcome is Outcome.EXITED and exit_code == 0)
    assert got.timed_out == (outcome is Outcome.TIMED_OUT)
    assert got.is_infrastructure_failure == (outcome is Outcome.LOST)


def test_check_gives_an_ok_result_back() -> None:
    got = result()
    assert got.check() is got


def test_check_raises_with_the_command_the_outcome_and_the_end_of_stderr() -> None:
    with pytest.raises(CommandFailed) as caught:
        result(command=["ls", "-l"], exit_code=2, stderr_bytes=b"x" * 1000 + b"no such file\n").check()
    assert "ls -l" in caught.value.message
    assert caught.value.message.endswith("no such file")
    assert (caught.value.exit_code, caught.value.outcome) == (2, "exited")
    assert len(caught.value.message) < 1000


def test_check_of_a_silent_failure_has_no_empty_explanation() -> None:
    with pytest.raises(CommandFailed) as caught:
        result(exit_code=1).check()
    assert caught.value.message == "'x' exited with exit code 1"


@pytest.mark.parametrize(
    ("outcome", "exit_code", "status"),
    [
        (Outcome.EXITED, 0, ProcessStatus.COMPLETED),
        (Outcome.EXITED, 3, ProcessStatus.FAILED),
        (Outcome.SIGNALED, 139, ProcessStatus.KILLED),
        (Outcome.KILLED, 137, ProcessStatus.KILLED),
        (Outcome.TIMED_OUT, 124, ProcessStatus.KILLED),
        (Outcome.OUT_OF_MEMORY, 137, ProcessStatus.KILLED),
        (Outcome.LOST, None, ProcessStatus.ERROR),
    ],
)
def test_each_outcome_has_one_process_status(outcome: Outcome, exit_code: int | None, status: ProcessStatus) -> None:
    assert ProcessExit(outcome=outcome, exit_code=exit_code).status is status


def test_every_outcome_in_the_contract_exists() -> None:
    assert set(Outcome) == {"exited", "signaled", "timed_out", "out_of_memory", "killed", "stopped", "lost"}


def test_a_spec_is_isolated_and_has_no_network_unless_asked_for() -> None:
    spec = make_spec(None, {})
    assert spec == SandboxSpec()
    assert (spec.isolation, spec.network, spec.workdir) == (Isolation.BUBBLEWRAP, Network.NONE, "/workspace")


def test_fields_replace_those_of_the_given_spec() -> None:
    spec = make_spec(
        SandboxSpec(env={"A": "1"}, limits=Limits(pids=5)),
        {"network": "host", "mounts": [Mount(source="/a", target="/b")], "labels": {"x": "y"}},
    )
    assert spec.network is Network.HOST
    assert spec.mounts == (Mount(source="/a", target="/b"),)
    assert (spec.env, spec.limits.pids, spec.labels) == ({"A": "1"}, 5, {"x": "y"})


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"isolatoin": "none"}, "isolatoin"),
        ({"isolation": "docker"}, "docker"),
        ({"network": "somewhere"}, "somewhere"),
        ({"limits": {"memory": "1G"}}, "memory"),
        ({"env": {"A": 1}}, "env"),
        ({"keep_alive": "yes"}, "keep_alive"),
        ({"workdir": "src"}, "workdir must be an absolute path"),
        ({"isolation": "none", "network": "internet"}, "a network policy needs isolation"),
        ({"workdir": ""}, "workdir must be an absolute path"),
        ({"workdir": "/a\0b"}, "workdir: "),
        ({"mounts": [Mount(source="/a\0--bind", target="/b")]}, "mounts: "),
        ({"mounts": [Mount(source="/a", target="/b\0--share-net")]}, "mounts: "),
        ({"env": {"A": "\0"}}, "env: "),
        ({"env": {"A\0": "1"}}, "env: "),
        ({"labels": {"a": "b\0"}}, "labels: "),
        ({"limits": Limits(pids=0)}, "pids"),
        ({"limits": Limits(memory=-1)}, "memory"),
        ({"limits": Limits(cpus=float("nan"))}, "cpus"),
        ({"limits": Limits(cpus=float("inf"))}, "cpus"),
        ({"limits": Limits(open_files=3)}, "open_files must be at least 64"),
        ({"limits": Limits(memory=(16 << 20) - 1)}, "memory must be at least 16777216 for a sandbox to start"),
        ({"limits": Limits(pids=3)}, "pids must be at least 4"),
        ({"idle_timeout": 0}, "idle_timeout"),
        ({"startup": True}, "startup=True is what an image starts"),
        ({"startup": []}, "startup is an empty list"),
        ({"startup": [""], "image": "debian"}, "startup is an empty list"),
        ({"sudo": True}, "sudo needs an image"),
        ({"lifetime": float("inf")}, "lifetime"),
        ({"lifetime": 1e15}, "at most 3153600000"),
        ({"idle_timeout": 1e300}, "at most 3153600000"),
    ],
)
def test_options_that_are_not_valid_are_refused_by_name(fields: object, part: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        make_spec(None, fields)  # type: ignore[arg-type]
    assert part in caught.value.message


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValidationFailed, match="isolation, network, limits"):
        make_spec(None, {"nosuch": 1})  # type: ignore[typeddict-unknown-key]


def test_a_value_that_is_no_choice_is_told_the_choices() -> None:
    with pytest.raises(ValidationFailed, match=r"'interet'.*network is one of none, internet, host"):
        make_spec(None, {"network": "interet"})  # type: ignore[typeddict-item]
    with pytest.raises(ValidationFailed, match=r"'gvisor'.*isolation is one of bubblewrap, none"):
        make_spec(None, {"isolation": "gvisor"})  # type: ignore[typeddict-item]


def test_a_spec_of_another_type_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="SandboxSpec"):
        make_spec({"network": "host"}, {})  # type: ignore[arg-type]


def test_values_survive_the_wire() -> None:
    spec = SandboxSpec(env={"A": "1"}, mounts=(Mount(source="/a", target="/b"),), limits=Limits(cpus=0.5))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=SandboxSpec) == spec
    got = result(stdout_bytes=b"\xff\0")
    assert msgspec.json.decode(msgspec.json.encode(got), type=ExecResult) == got


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_lost_process_or_run_is_a_failure_of_the_infrastructure(outcome: Outcome) -> None:
    assert ProcessExit(outcome=outcome, exit_code=None).is_infrastructure_failure == (outcome is Outcome.LOST)
    assert execution(outcome=outcome).is_infrastructure_failure == (outcome is Outcome.LOST)


def execution(*results: Result, outcome: Outcome = Outcome.EXITED) -> Execution:
    error = CodeError(name="E", message="m", traceback="t")
    return Execution(
        results=results, stdout="", stderr="", error=error, execution_count=1, outcome=outcome, duration=0.1
    )


def test_a_result_is_a_bundle_with_names_for_the_usual_types() -> None:
    got = Result(
        data={
            "text/plain": "t",
            "text/html": "h",
            "text/markdown": "m",
            "text/latex": "l",
            "image/svg+xml": "s",
            "image/png": "aW1n",
            "image/jpeg": "anBn",
            "application/json": [1],
        }
    )
    assert (got.text, got.html, got.markdown, got.latex, got.svg) == ("t", "h", "m", "l", "s")
    assert (got.png, got.jpeg, got.json) == (b"img", b"jpg", [1])
    assert got["text/html"] == "h"
    assert "text/html" in got
    assert "text/css" not in got


@pytest.mark.parametrize("value", [None, 5, "not base64!", "a"])
def test_an_image_that_is_no_base64_is_none(value: object) -> None:
    assert Result(data={"image/png": value}).png is None


def test_the_text_of_a_run_is_that_of_its_last_expression() -> None:
    display, first, last = (Result(data={"text/plain": text}, is_main=text != "d") for text in ("d", "1", "2"))
    assert execution(first, last, display).text == "2"
    assert execution(display).text is None


def test_a_checkout_is_clean_when_no_file_differs() -> None:
    changed = GitFile(path="a", staged=GitChange.UNMODIFIED, unstaged=GitChange.MODIFIED)
    assert GitStatus(branch="main", commit=None).is_clean
    assert not GitStatus(branch="main", commit=None, files=(changed,)).is_clean


def test_a_snapshot_is_named_by_its_id_or_by_itself_and_needs_isolation() -> None:
    snapshot = SnapshotInfo(id="s", created_at=datetime.now(UTC))
    assert make_spec(None, {"snapshot": snapshot}) == make_spec(None, {"snapshot": "s"}) == SandboxSpec(snapshot="s")
    with pytest.raises(ValidationFailed, match="isolation"):
        make_spec(None, {"snapshot": "s", "isolation": "none"})


def test_a_task_that_returns_is_well_unless_its_result_was_lost() -> None:
    done = TaskResult(index=0, item="a", value=1)
    assert (done.ok, done.is_infrastructure_failure, done.check()) == (True, False, 1)
    lost = TaskResult(index=0, item="a", value=result(outcome=Outcome.LOST, exit_code=None))
    assert (lost.ok, lost.is_infrastructure_failure) == (False, True)


def test_a_task_that_raises_is_to_blame_unless_the_machine_was() -> None:
    for error, is_ours in ((KeyError("a"), False), (SandboxUnavailable("no room"), True)):
        failed = TaskResult[str, int](index=0, item="a", error=error)
        assert (failed.ok, failed.is_infrastructure_failure) == (False, is_ours)
        with pytest.raises(type(error)):
            failed.check()


def test_the_name_of_a_snapshot_is_printable_text() -> None:
    for name in (None, "", "before the upgrade", "é" * 256):
        check_snapshot_name(name)
    for wrong in ("\ud800", "a\nb", "x" * 257, 7):
        with pytest.raises(ValidationFailed, match="printable text of at most 256"):
            check_snapshot_name(wrong)  # type: ignore[arg-type]  # as a program may give it


def test_labels_are_texts() -> None:
    with pytest.raises(ValidationFailed, match="both strings"):
        check_labels({"a": 1})  # type: ignore[dict-item]  # as a program may give it
