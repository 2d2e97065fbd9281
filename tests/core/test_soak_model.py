"""The model of the soak run: what it accepts, and what it does not."""

import pytest

from cove.errors import ConnectionLost, FileNotFound, SandboxUnavailable, SessionTerminated
from soak.faults import AFTERMATH, ALLOWED, Fault, Weather
from soak.growth import slope
from soak.history import History
from soak.model import OutputModel, ShellModel, TypedModel
from soak.possible import Possible, Violation
from soak.subject import policy_name, policy_of
from soak.trees import Tree, copy_tree, fits, observe, settle


def test_a_value_is_what_it_became_or_may_have_become_and_nothing_else() -> None:
    value = Possible("old")
    value.may_become("new", "old")
    assert value.values == ["old", "new"]
    with pytest.raises(Violation, match="x is 'third', and must be 'old' or 'new'"):
        value.observe("third", "x")
    value.observe("new", "x")
    assert value.certain == "new"
    value.become("next")
    with pytest.raises(Violation):
        value.observe("new", "x")


def test_a_change_that_depends_on_the_old_value_is_made_to_every_possible_one() -> None:
    content = Possible(b"a", b"b")
    content.change(lambda old: old + b"+", is_certain=True)
    assert content.values == [b"a+", b"b+"]
    content.change(lambda old: old + b"!", is_certain=False)
    assert content.values == [b"a+", b"b+", b"a+!", b"b+!"]


def test_a_replaced_shell_is_as_after_the_command_it_names() -> None:
    shell = ShellModel(Possible("/"))
    shell.variable("a").become("1")
    shell.completed("a=1")
    shell.variable("a").become("2")
    shell.completed("a=2")
    shell.restore("a=1")
    assert shell.variable("a").certain == "1"
    shell.restore(None)
    assert shell.variable("a").certain is None
    with pytest.raises(Violation, match="was not run"):
        shell.restore("a=3")


def test_what_counts_as_no_command_may_be_in_the_snapshot_or_not() -> None:
    shell = ShellModel(Possible("/"))
    shell.completed("true")
    shell.variable("a").become("exported")
    shell.cwd.may_become("/tmp")
    shell.disturbed()
    assert not shell.is_certain
    shell.restore("true")
    assert set(shell.variable("a").values) == {None, "exported"}
    assert set(shell.cwd.values) == {"/", "/tmp"}


def test_a_command_that_was_not_answered_may_be_the_one_that_a_replaced_shell_names() -> None:
    shell = ShellModel(Possible("/"))
    shell.completed("true")
    shell.unanswered("cd /tmp")
    shell.cwd.may_become("/tmp")
    shell.disturbed()
    for command in ("true", "cd /tmp"):
        shell.restore(command)
        assert set(shell.cwd.values) == {"/", "/tmp"}


def test_only_so_many_states_of_a_shell_are_kept_and_the_first_is() -> None:
    shell = ShellModel(Possible("/"))
    for number in range(200):
        shell.completed(f"command {number}")
    shell.restore("command 199")
    shell.restore(None)
    with pytest.raises(Violation):
        shell.restore("command 1")


def test_output_is_exactly_what_was_expected_and_ends_only_at_its_end() -> None:
    output = OutputModel(b"one two three")
    output.observe(0, b"one", is_end=False)
    output.observe(4, b"two", is_end=False)
    for start, data in ((0, b"two"), (3, b"two"), (8, b"three!")):
        with pytest.raises(Violation):
            output.observe(start, data, is_end=False)
    with pytest.raises(Violation, match="ends at byte 7 of 13"):
        output.observe(0, b"one two", is_end=True)
    output.observe(8, b"three", is_end=True)


def test_output_that_was_cut_has_one_end_which_is_not_before_what_was_seen() -> None:
    output = OutputModel(b"one two three", is_cut=True)
    output.observe(0, b"one two", is_end=False)
    with pytest.raises(Violation, match="although 7 were seen"):
        output.observe(0, b"one", is_end=True)
    output.observe(0, b"one two t", is_end=True)
    for data, is_end in ((b"one two th", False), (b"one two", True)):
        with pytest.raises(Violation, match="ended at 9 before"):
            output.observe(0, data, is_end=is_end)


def test_a_terminal_shows_what_was_typed_in_order_and_once() -> None:
    typed = TypedModel(b"R")
    typed.type(b"<1>", is_certain=True)
    typed.type(b"<2>", is_certain=True)
    assert not typed.is_complete(b"R<1>")
    assert typed.is_complete(b"R<1><2>")
    typed.observe(b"R<1><2>")
    for shown in (b"<1><2>", b"R<2><1>", b"R<1><1><2>", b"R<1><2><2>", b"R<1>", b"R<1><2>?"):
        with pytest.raises(Violation):
            typed.observe(shown)


def test_what_was_typed_uncertainly_may_be_missing_or_late_but_stays_once_it_was_seen() -> None:
    for shown in (b"R<2>", b"R<1><2>", b"R<2><1>", b"R<2><"):
        typed = TypedModel(b"R")
        typed.type(b"<1>", is_certain=False)
        typed.type(b"<2>", is_certain=True)
        typed.observe(shown)
    seen = TypedModel(b"R")
    seen.type(b"<1>", is_certain=False)
    seen.observe(b"R<1>")
    with pytest.raises(Violation):
        seen.observe(b"R")


def test_a_failure_is_allowed_only_for_the_sandbox_and_the_time_of_a_fault_that_explains_it() -> None:
    weather = Weather()
    lost, wrong = SandboxUnavailable("lost"), FileNotFound("no")
    assert not weather.permits(lost, "a", 0.0)
    strike = weather.begin(Fault.AGENT_KILLED, "a", 1.0)
    assert weather.permits(lost, "a", 0.5)
    assert not weather.permits(lost, "b", 0.5)
    assert not weather.permits(wrong, "a", 0.5)
    strike.ended = 2.0
    assert weather.permits(lost, "a", 2.0 + AFTERMATH / 2)
    assert not weather.permits(lost, "a", 2.0 + AFTERMATH)


def test_a_fault_of_the_server_is_for_all_and_explains_no_lost_process() -> None:
    weather = Weather()
    weather.begin(Fault.WORKER_KILLED, None, 1.0)
    assert weather.permits(ConnectionLost("broke"), "a", 1.0)
    assert not weather.permits(SessionTerminated("ended"), "a", 1.0)
    assert not weather.permits_loss("a", 1.0)
    weather.begin(Fault.RUNTIME_KILLED, "a", 1.0)
    assert weather.permits_loss("a", 1.0)
    assert not weather.permits_loss("b", 1.0)


def test_every_fault_says_what_it_allows() -> None:
    assert set(ALLOWED) == set(Fault)


def test_a_slope_is_that_of_the_line_through_the_points() -> None:
    assert slope([(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)]) == pytest.approx(2.0)
    assert slope([(0.0, 5.0), (1.0, 4.0), (2.0, 5.0)]) == pytest.approx(0.0)
    assert slope([(1.0, 5.0)]) == 0.0
    assert slope([(1.0, 5.0), (1.0, 6.0)]) == 0.0


def test_a_failure_is_told_with_its_seed_and_the_steps_of_its_sandbox() -> None:
    history = History(7)
    history.note("sandbox0/left", 1, "write a")
    history.note("sandbox1/only", 1, "write b")
    history.note("all/", 0, "!! server killed")
    history.fail("sandbox0/right", 9, "it is not so")
    (failure,) = history.failures
    assert failure.startswith("FAILURE in sandbox0/right at step 9, seed 7: it is not so\n")
    assert "write a" in failure
    assert "server killed" in failure
    assert "write b" not in failure


def tree(**files: bytes | None) -> Tree:
    return {name: Possible[bytes | None](content) for name, content in files.items()}


def test_files_after_a_change_that_was_not_answered_are_of_one_state_and_never_of_both() -> None:
    old, new = tree(a=b"1", b=b"1"), tree(a=b"2", b=None)
    settled = settle({"a": b"2", "b": None}, "x", old, new)
    assert {name: file.certain for name, file in settled.items()} == {"a": b"2", "b": None}
    for found in ({"a": b"2", "b": b"1"}, {"a": b"1", "b": None}, {"a": b"3", "b": b"1"}, {"a": b"1"}):
        with pytest.raises(Violation, match="x has files of no one state"):
            settle(found, "x", old, new)


def test_what_was_not_certain_when_it_was_remembered_may_be_any_of_it() -> None:
    before = tree(a=b"1", b=None)
    before["a"].may_become(b"2")
    remembered = copy_tree(before)
    before["a"].become(b"3")
    assert fits(remembered, {"a": b"2", "b": None})
    assert not fits(remembered, {"a": b"3", "b": None})
    with pytest.raises(Violation, match="a in a copy is"):
        observe(remembered, {"a": b"3", "b": None}, "a copy")


def test_a_policy_has_the_names_of_the_hosts_that_it_allows() -> None:
    assert policy_name(policy_of("b.example,a.example", 80)) == "a.example,b.example"
    assert policy_name("none") == ""
