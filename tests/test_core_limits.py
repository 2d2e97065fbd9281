import pytest

from cove.core.limits import Setting, choose_settings, requested, unified_settings, v1_settings
from cove.model import Limits

ALL = Limits(memory=1 << 30, cpus=1.5, pids=100, disk=5, open_files=64)


def test_the_unified_tree_is_told_memory_pids_and_cpus() -> None:
    assert [(setting.file, setting.value) for setting in unified_settings(ALL)] == [
        ("memory.max", str(1 << 30)),
        ("pids.max", "100"),
        ("cpu.max", "150000 100000"),
    ]


def test_the_v1_trees_are_told_the_same_in_their_words() -> None:
    assert [(setting.controller, setting.file, setting.value) for setting in v1_settings(ALL)] == [
        ("memory", "memory.limit_in_bytes", str(1 << 30)),
        ("pids", "pids.max", "100"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("cpu", "cpu.cfs_quota_us", "150000"),
    ]


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
        ({"memory", "pids", "cpu"}, {"memory"}, (["memory", "pids", "cpus"], [])),
        (set(), {"memory", "cpu"}, ([], ["memory", "cpus", "cpus"])),
        ({"pids"}, {"memory", "pids"}, (["pids"], ["memory"])),
    ],
)
def test_each_limit_is_set_once_and_the_unified_tree_comes_first(
    unified: set[str], v1: set[str], names: tuple[list[str], list[str]]
) -> None:
    chosen = choose_settings(ALL, unified, v1)
    assert tuple([setting.limit for setting in settings] for settings in chosen) == names
    assert all(isinstance(setting, Setting) for settings in chosen for setting in settings)
