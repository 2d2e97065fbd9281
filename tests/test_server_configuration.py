"""What a server is told, and what a spec that a client sends may ask for."""

from pathlib import Path

import pytest

from cove import Limits, Mount, SandboxSpec
from cove.errors import PermissionDenied, ValidationFailed
from cove.model import Isolation, Network
from cove.server.configuration import Configuration, OnStop, load


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

    def admit(source: Path) -> tuple[Mount, ...]:
        return configuration.admit(SandboxSpec(mounts=(Mount(source=str(source), target="/data"),))).mounts

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
