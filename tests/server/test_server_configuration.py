"""What a server is told, and what a spec that a client sends may ask for."""

from pathlib import Path

import pytest

from cove import Limits, Mount, SandboxSpec
from cove.core.limits import MOST_PROCESSES
from cove.errors import PermissionDenied, ValidationFailed
from cove.model import Isolation, JournalDetail, Network
from cove.server.configuration import (
    DEFAULT_LIFETIME,
    ClusterSettings,
    Configuration,
    OnStop,
    built_in_defaults,
    load,
)


def test_a_file_and_options_are_read_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(
        'port = 1000\nwarm = 3\non_stop = "destroy"\nallow_mounts = ["/srv"]\n[default_limits]\nmemory = 100000000\n'
    )
    configuration = load(path, {"port": 2000, "host": None})
    assert (configuration.port, configuration.warm, configuration.on_stop) == (2000, 3, OnStop.DESTROY)
    assert (configuration.host, configuration.allow_mounts) == ("127.0.0.1", ("/srv",))
    assert configuration.default_limits == Limits(memory=100_000_000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1000", "prot"),
        ('port = "x"', "port"),
        ("port = ", "TOML"),
        ("workers = 0", "worker"),
        ("[default_limits]\nmemory = 1000", "limits.memory must be at least"),
        ("[maximum_limits]\ncpus = -1.0", "limits.cpus must be more than 0"),
        ("default_lifetime = 0.0", "lifetime"),
        ('host = "0.0.0.0"\ninsecure_no_key = true', "insecure"),
        ('host = "::1234"\ninsecure_no_key = true', "insecure"),
        ('host = "127.example.com"\ninsecure_no_key = true', "insecure"),
        ('host = "localhost.example.com"\ninsecure_no_key = true', "insecure"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_a_reason(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ValidationFailed, match=complaint):
        load(path, {})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match="cannot read"):
        load(tmp_path / "missing", {})


def test_a_server_is_called_by_its_address_by_those_of_all_nodes_and_by_its_names() -> None:
    members = {"a": "http://127.0.0.21:8787", "b": "http://[::2]:8787"}
    cluster = ClusterSettings(node="a", peer_key_file="key", members=members)
    configuration = Configuration(host="127.0.0.21", names=("cove.example",), cluster=cluster)
    assert configuration.hosts == ("127.0.0.21", "127.0.0.21", "[::2]", "cove.example")
    assert Configuration(host="::1").hosts == ("[::1]",)


def test_previews_are_beside_the_api_unless_told_otherwise() -> None:
    assert Configuration(port=1000).chosen_preview_port == 1001
    assert Configuration(port=0).chosen_preview_port == 0
    assert Configuration(port=1000, preview_port=5).chosen_preview_port == 5


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(isolation=Isolation.NONE),
        SandboxSpec(network=Network.HOST),
        SandboxSpec(mounts=(Mount(source="/usr", target="/data"),)),
    ],
)
def test_what_leaves_the_sandbox_is_refused_unless_it_is_allowed(spec: SandboxSpec) -> None:
    with pytest.raises(PermissionDenied):
        Configuration().admit(spec)
    generous = Configuration(allow_isolation_none=True, allow_host_network=True, allow_mounts=("/usr",))
    assert generous.admit(spec) == spec


def test_a_mount_is_allowed_by_where_it_really_leads(tmp_path: Path) -> None:
    (tmp_path / "allowed" / "inner").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "allowed-not")
    configuration = Configuration(allow_mounts=(str(tmp_path / "allowed"),))

    def admit(source: Path) -> list[Mount]:
        mounts = configuration.admit(SandboxSpec(mounts=(Mount(source=str(source), target="/data"),))).mounts
        return [mount for mount in mounts if isinstance(mount, Mount)]

    inner = tmp_path / "allowed" / "inner"
    assert [mount.source for mount in admit(inner / ".." / "inner")] == [str(inner)]
    for refused in ("allowed-not", "allowed/link", "allowed/../allowed-not", "."):
        with pytest.raises(PermissionDenied):
            admit(tmp_path / refused)


def test_limits_and_times_have_defaults_and_limits_have_maxima() -> None:
    configuration = Configuration(
        default_limits=Limits(memory=100 << 20, pids=10),
        maximum_limits=Limits(memory=200 << 20, cpus=2.0),
        default_idle_timeout=60.0,
        default_lifetime=600.0,
    )
    admitted = configuration.admit(SandboxSpec())
    assert admitted.limits == Limits(memory=100 << 20, pids=10, cpus=2.0)
    assert (admitted.idle_timeout, admitted.lifetime) == (60.0, 600.0)
    chosen = SandboxSpec(limits=Limits(memory=200 << 20, pids=1000), idle_timeout=5.0, lifetime=6.0)
    assert configuration.admit(chosen).limits == Limits(memory=200 << 20, pids=1000, cpus=2.0)
    assert (configuration.admit(chosen).idle_timeout, configuration.admit(chosen).lifetime) == (5.0, 6.0)
    with pytest.raises(PermissionDenied, match=r"limits\.memory of at most 209715200"):
        configuration.admit(SandboxSpec(limits=Limits(memory=(200 << 20) + 1)))


def test_a_server_has_limits_that_nobody_has_configured(tmp_path: Path) -> None:
    configuration = load(None, {}, built_in_defaults(tmp_path / "not" / "there"))
    admitted = configuration.admit(SandboxSpec())
    limits = admitted.limits
    assert None not in (limits.memory, limits.cpus, limits.pids, limits.disk)
    assert (admitted.lifetime, admitted.idle_timeout) == (DEFAULT_LIFETIME, None)
    less = SandboxSpec(limits=Limits(memory=64 << 20, pids=10), lifetime=5.0)
    assert configuration.admit(less).limits == Limits(memory=64 << 20, pids=10, cpus=limits.cpus, disk=limits.disk)
    assert configuration.admit(less).lifetime == 5.0


def test_no_limit_has_a_word(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(
        'default_lifetime = "unlimited"\ndefault_idle_timeout = 60\n'
        '[default_limits]\nmemory = "unlimited"\npids = 7\n[maximum_limits]\ncpus = "unlimited"\n'
    )
    built_in = built_in_defaults(tmp_path)
    admitted = load(path, {}, built_in).admit(SandboxSpec())
    assert (admitted.limits.memory, admitted.limits.pids, admitted.lifetime, admitted.idle_timeout) == (
        None,
        7,
        None,
        60,
    )
    assert admitted.limits.cpus == built_in["default_limits"]["cpus"]  # type: ignore[index]
    assert load(None, {}).admit(SandboxSpec()) == SandboxSpec()


def test_a_default_is_not_more_than_the_maximum(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[maximum_limits]\nmemory = 33554432\npids = 100000\n")
    configuration = load(path, {}, built_in_defaults(tmp_path))
    assert configuration.default_limits.memory == 32 << 20
    assert configuration.default_limits.pids == MOST_PROCESSES
    assert configuration.admit(SandboxSpec(limits=Limits(pids=100_000))).limits.pids == 100_000
    with pytest.raises(PermissionDenied, match=r"limits\.memory"):
        configuration.admit(SandboxSpec(limits=Limits(memory=64 << 20)))


@pytest.mark.parametrize("text", ['port = "unlimited"', '[default_limits]\nmemory = "much"', 'default_limits = "none"'])
def test_only_limits_can_be_unlimited_and_only_by_that_word(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ValidationFailed, match="not valid"):
        load(path, {}, built_in_defaults(tmp_path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[bridge_spec]\nnetwrk = "host"', "bridge_spec has no setting 'netwrk'"),
        ('[bridge_spec]\nnetwork = "agents"', "network 'agents' is none of"),
        ('[bridge_spec]\nnetwork = {allow = ["a b"]}', "'a b' is not a host name"),
        ('[network.policies.x]\nallow = ["http://a"]', "write a name"),
        ("[bridge_spec.limits]\nmem = 1", r"bridge_spec\.limits has no setting 'mem'"),
        ("[bridge_specs.open]\nidle = 1", "bridge_spec has no setting 'idle'"),
        ('[[bridge_spec.mounts]]\nfrom = "/srv"', r"bridge_spec\.mounts has no setting 'from'"),
        ("[default_limits]\nmem = 1", "default_limits has no setting 'mem'"),
    ],
)
def test_a_misspelt_setting_is_refused_wherever_it_stands(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ValidationFailed, match=complaint):
        load(path, {})


def test_a_server_says_what_journals_keep_at_most() -> None:
    strict = Configuration(journal=JournalDetail.EVENTS)
    for asked in JournalDetail:
        assert strict.admit(SandboxSpec(journal=asked)).journal is JournalDetail.EVENTS
        assert Configuration().admit(SandboxSpec(journal=asked)).journal is asked
    with pytest.raises(ValidationFailed, match="journal_keep"):
        Configuration(journal_keep=-1)
