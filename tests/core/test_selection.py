"""Labels, and the selection of sandboxes by them and by their status."""

from datetime import UTC, datetime

import pytest

from cove.errors import ValidationFailed
from cove.model import Isolation, SandboxInfo, SandboxSpec, SandboxStatus, Selection, TreeKill, make_spec
from cove.wire.requests import ListSandboxes

pytestmark = pytest.mark.pure


def _info(status: SandboxStatus = SandboxStatus.RUNNING, **labels: str) -> SandboxInfo:
    return SandboxInfo(
        id="x",
        status=status,
        created_at=datetime.now(UTC),
        spec=SandboxSpec(labels=labels),
        isolation=Isolation.BUBBLEWRAP,
        tree_kill=TreeKill.CGROUP,
    )


def test_a_sandbox_is_selected_by_all_labels_and_the_status() -> None:
    assert Selection.of(None, None).has(_info(team="a"))
    assert Selection.of({"team": "a"}, "running").has(_info(team="a", kind="b"))
    assert not Selection.of({"team": "a", "kind": "c"}, None).has(_info(team="a", kind="b"))
    assert not Selection.of({}, SandboxStatus.PAUSED).has(_info())


@pytest.mark.parametrize("status", ["asleep", 1])
def test_a_status_that_does_not_exist_selects_nothing(status: str) -> None:
    with pytest.raises(ValidationFailed, match="selected"):
        Selection.of({}, status)


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"-a": "x"}, {"a" * 65: "x"}, {"a": "x" * 257}, {"a": "\t"}, {f"n{n}": "" for n in range(65)}]
)
def test_labels_that_are_too_many_too_long_or_misnamed_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValidationFailed, match="label"):
        make_spec(None, {"labels": labels})
    with pytest.raises(ValidationFailed, match="label"):
        Selection.of(labels, None)


def test_the_most_labels_are_taken() -> None:
    labels = {f"a/b.c-{n}": "ü" * 256 for n in range(64)}
    assert make_spec(None, {"labels": labels}).labels == labels


def test_a_selection_travels_in_the_query() -> None:
    request = ListSandboxes.of(labels={"team": "a,b=c"}, status="paused")
    assert request.labels == '{"team":"a,b=c"}'
    assert request.arguments() == {"labels": {"team": "a,b=c"}, "status": SandboxStatus.PAUSED}
    assert ListSandboxes.of(labels=None, status=None).arguments() == {"labels": {}, "status": None}
    with pytest.raises(ValidationFailed):
        ListSandboxes(labels="[1]").arguments()
