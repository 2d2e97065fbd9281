"""A node of a cluster on Ray, without Ray: its secrets, the command of Ray, and what is left when that is killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cove.errors import SandboxUnavailable, ValidationFailed
from cove.linux.pidfd import kill_marked
from cove.server.cluster.joining import (
    default_ip,
    default_name,
    derive,
    find_token,
    load_node,
    make_token,
    read_token,
    write_peer_key,
)
from cove.server.cluster.ray_node import node_environment, ray_command, ray_environment, without_secrets
from cove.server.configuration import Configuration, RayRole, RaySettings, load

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
HEAD = RaySettings(token_file="/t", address="10.0.0.1:6379", role=RayRole.HEAD)


def test_a_token_is_made_once_and_for_this_user_only(tmp_path: Path) -> None:
    path = make_token(tmp_path / "home")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(make_token(tmp_path / "home")) == read_token(path)
    assert len(read_token(path)) == 64


def test_a_token_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = make_token(tmp_path)
    path.chmod(0o640)
    with pytest.raises(ValidationFailed, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ValidationFailed, match="no token"):
        read_token(path)
    with pytest.raises(ValidationFailed, match="Cove uses none"):
        find_token(tmp_path / "other")


def test_the_keys_of_a_cluster_are_derived_and_differ(tmp_path: Path) -> None:
    token = b"t" * 64
    peer = write_peer_key(tmp_path, token)
    assert peer.stat().st_mode & 0o777 == 0o600
    assert peer.read_text().strip() == derive(token, "peer key") != derive(token, "API key")
    assert token.decode() not in peer.read_text()


def test_a_node_listens_for_others_and_all_nodes_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    token = make_token(tmp_path)
    ray = {"role": "join", "address": "10.0.0.1:6379"}
    one, two = (load_node(tmp_path / name, None, {}, name, token, ray) for name in ("a", "b"))
    assert one.host == "0.0.0.0"
    assert one.api_key == two.api_key == derive(read_token(token), "API key")
    assert one.cluster is not None
    assert one.cluster.node == "a"
    assert load_node(tmp_path, None, {"api_key": "chosen-key"}, "a", token, ray).api_key == "chosen-key"
    assert load_node(tmp_path, None, {"host": "127.0.0.1"}, "a", token, ray).host == "127.0.0.1"


@pytest.mark.parametrize(
    "lines",
    [
        '[cluster]\nnode = "a"\nmembers = {a = "http://10.0.0.1:8787"}',
        '[cluster]\nnode = "a"\npeer_key_file = "/k"\n[cluster.ray]\naddress = "auto"',
        '[cluster]\nnode = "a"\npeer_key_file = "/k"',
        '[cluster]\nnode = "a"\npeer_key_file = "/k"\n[cluster.ray]\ntoken_file = "/t"\nblock_slots = 100',
        '[cluster]\nnode = "a"\npeer_key_file = "/k"\n[cluster.ray]\ntoken_file = "/t"\nslot_cpus = -1.0',
    ],
)
def test_a_cluster_without_a_secret_is_refused(tmp_path: Path, lines: str) -> None:
    """And one that has neither members nor Ray, or amounts that are none; with or without host network."""
    path = tmp_path / "server.toml"
    path.write_text("allow_host_network = true\n" + lines)
    with pytest.raises(ValidationFailed):
        load(path, {})


def test_the_documented_settings_are_taken(tmp_path: Path) -> None:
    documented = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
    (text,) = [each for each in documented if "cluster.ray" in each]
    path = tmp_path / "server.toml"
    path.write_text(text)
    found: Configuration = load(path, {})
    assert found.cluster is not None
    assert found.cluster.ray is not None
    assert found.cluster.ray.slot_memory == 512 << 20


def test_ray_is_started_with_a_token_and_without_a_dashboard() -> None:
    command = ray_command(Path("/var/lib/cove"), "a", HEAD)
    assert {"--block", "--head", "--port=6379", "--include-dashboard=false", "--labels=cove-node=a"} <= set(command)
    joining = ray_command(Path("/home"), "b", RaySettings(token_file="/t", address="10.0.0.1:6379", role=RayRole.JOIN))
    assert "--address=10.0.0.1:6379" in joining
    assert "--head" not in joining
    environment = node_environment(Path("/home"), "/t")
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/t"
    assert environment["RAY_health_check_period_ms"] == "1000"


def test_a_path_that_is_too_long_for_rays_sockets_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="shorter --home"):
        ray_command(Path("/" + "x" * 40), "a", HEAD)


def test_a_server_passes_on_neither_the_token_nor_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "COVE_API_KEY"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in without_secrets(os.environ).values()
    assert "secret" not in ray_environment("/t").values()


def test_what_is_left_is_ended_by_its_mark_and_nothing_else() -> None:
    command = [sys.executable, "-c", "input()"]
    marked, other = (
        subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "COVE_RAY": home})
        for home in ("/marked-home", "/marked-home-2")
    )
    try:
        while b"COVE_RAY" not in Path(f"/proc/{marked.pid}/environ").read_bytes():
            pass
        assert kill_marked("COVE_RAY", "/marked-home") == 1
        assert marked.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        for process in (marked, other):
            process.communicate()


def test_a_machine_has_a_name_and_an_address() -> None:
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", default_name())
    assert re.fullmatch(r"[0-9.]+", default_ip())


def test_the_manifest_for_kubernetes_is_whole() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
    cluster, service = yaml.safe_load_all(text)
    assert (cluster["kind"], cluster["apiVersion"], service["kind"]) == ("RayCluster", "ray.io/v1", "Service")
    assert cluster["spec"]["authOptions"]["mode"] == "token"
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert "cove" in group["rayStartParams"]["resources"]
    assert service["spec"]["selector"] == group["template"]["metadata"]["labels"]
    (container,) = group["template"]["spec"]["containers"]
    assert "cove serve --cluster auto" in container["lifecycle"]["postStart"]["exec"]["command"][2]


@pytest.mark.parametrize(("name", "command"), [("head", "cluster start"), ("node", "cluster join ${COVE_HEAD}")])
def test_the_units_let_sandboxes_live_on(name: str, command: str) -> None:
    unit = (ROOT / f"packaging/cove-cluster-{name}.service").read_text()
    (start,) = re.findall(r"^ExecStart=/usr/bin/env cove (.*)$", unit, re.MULTILINE)
    assert start.startswith(command)
    assert {"KillMode=process", "Delegate=yes", "Restart=on-failure"} <= set(unit.splitlines())


def test_what_the_file_says_of_the_cluster_holds_where_a_command_says_nothing(tmp_path: Path) -> None:
    token = make_token(tmp_path)
    config = tmp_path / "server.toml"
    config.write_text('[cluster]\nnode = "of-the-file"\n[cluster.ray]\nslots = 8\nblock_slots = 2\n')
    cluster = load_node(tmp_path, config, {}, None, token, {"address": "auto"}).cluster
    assert cluster is not None
    assert cluster.ray is not None
    assert (cluster.node, cluster.ray.slots, cluster.ray.block_slots) == ("of-the-file", 8, 2)
    cluster = load_node(tmp_path, config, {}, "given", token, {"slots": 4}).cluster
    assert cluster is not None
    assert cluster.ray is not None
    assert (cluster.node, cluster.ray.slots, cluster.ray.block_slots) == ("given", 4, 2)
