import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.limits import (
    MOST_PROCESSES,
    USER_SHARES,
    Setting,
    choose_settings,
    count_memory_kills,
    descriptors_inside,
    guards,
    inotify_limits,
    requested,
    stand_ins,
    unified_settings,
    v1_settings,
)
from cove.model import Limits

pytestmark = pytest.mark.pure

ALL = Limits(memory=1 << 30, cpus=1.5, pids=100, disk=5, open_files=64)


def test_the_unified_tree_is_told_memory_pids_and_cpus() -> None:
    assert [(setting.file, setting.value) for setting in unified_settings(ALL)] == [
        ("memory.max", str(1 << 30)),
        ("memory.swap.max", "0"),
        ("pids.max", "100"),
        ("cpu.max", "7500 5000"),
    ]


def test_the_v1_trees_are_told_the_same_in_their_words() -> None:
    assert [(setting.controller, setting.file, setting.value) for setting in v1_settings(ALL)] == [
        ("memory", "memory.limit_in_bytes", str(1 << 30)),
        ("memory", "memory.memsw.limit_in_bytes", str(1 << 30)),
        ("pids", "pids.max", "100"),
        ("cpu", "cpu.cfs_period_us", "5000"),
        ("cpu", "cpu.cfs_quota_us", "7500"),
    ]


@given(st.floats(min_value=0.001, max_value=1000))
def test_a_share_of_the_processor_is_one_the_kernel_takes(cpus: float) -> None:
    quota, period = map(int, unified_settings(Limits(cpus=cpus))[0].value.split())
    assert quota >= 1_000
    assert 1_000 <= period <= 1_000_000
    assert quota / period == pytest.approx(cpus, rel=0.001)


def test_no_limits_mean_no_settings() -> None:
    assert unified_settings(Limits()) == v1_settings(Limits()) == []
    assert requested(Limits()) == []


def test_requested_names_what_is_set() -> None:
    assert requested(ALL) == ["memory", "cpus", "pids", "disk", "open_files"]
    assert requested(Limits(pids=0)) == ["pids"]


@pytest.mark.parametrize(
    ("unified", "v1", "names"),
    [
        (set(), set(), ([], [])),
        ({"memory", "pids", "cpu"}, {"memory"}, (["memory", "memory", "pids", "cpus"], [])),
        (set(), {"memory", "cpu"}, ([], ["memory", "memory", "cpus", "cpus"])),
        ({"pids"}, {"memory", "pids"}, (["pids"], ["memory", "memory"])),
    ],
)
def test_each_limit_is_set_once_and_the_unified_tree_comes_first(
    unified: set[str], v1: set[str], names: tuple[list[str], list[str]]
) -> None:
    chosen = choose_settings(ALL, unified, v1)
    assert tuple([setting.limit for setting in settings] for settings in chosen) == names
    assert all(isinstance(setting, Setting) for settings in chosen for setting in settings)


def test_only_what_every_machine_has_must_be_there() -> None:
    optional = [setting.file for setting in (*unified_settings(ALL), *v1_settings(ALL)) if setting.is_optional]
    assert optional == ["memory.swap.max", "memory.memsw.limit_in_bytes"]


def test_what_no_group_holds_is_held_by_the_limits_of_processes_where_there_is_one() -> None:
    assert stand_ins(ALL, ["memory", "pids", "cpus"]) == {"RLIMIT_NPROC": 100, "RLIMIT_DATA": 1 << 30}
    assert stand_ins(ALL, ["disk"]) == {"RLIMIT_FSIZE": 5}
    assert stand_ins(ALL, []) == stand_ins(Limits(), []) == {}


def ours(processes: float = math.inf, signals: float = math.inf) -> dict[str, float]:
    return {"RLIMIT_NPROC": processes, "RLIMIT_SIGPENDING": signals, "RLIMIT_MSGQUEUE": math.inf}


def test_nobody_forks_without_end_also_where_no_limit_was_asked_for() -> None:
    assert guards(Limits(), ours()) == guards(Limits(), ours(MOST_PROCESSES)) == {"RLIMIT_NPROC": MOST_PROCESSES}
    assert guards(Limits(pids=10_000), ours()) == {}
    assert guards(Limits(), ours(MOST_PROCESSES - 1)) == {}  # who started us has less, and so have we


def test_one_sandbox_gets_one_share_of_what_a_user_has() -> None:
    assert guards(Limits(pids=10), ours(signals=1000)) == {"RLIMIT_SIGPENDING": 1000 // USER_SHARES}
    assert inotify_limits(128, 65536) == {"max_inotify_instances": 16, "max_inotify_watches": 8192}
    assert inotify_limits(1, 1) == {"max_inotify_instances": 1, "max_inotify_watches": 1}


def test_inside_there_are_half_of_our_descriptors() -> None:
    assert descriptors_inside(1024, 20_000) == (1024, 10_000)
    assert descriptors_inside(20_000, 20_000) == (10_000, 10_000)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        ("low 0\nhigh 0\nmax 9\noom 4\noom_kill 12\noom_group_kill 0\n", 12),
        ("oom_kill_disable 0\nunder_oom 0\n", 0),
    ],
)
def test_kills_for_want_of_memory_are_counted_in_both_notations(text: str, count: int) -> None:
    assert count_memory_kills(text) == count
