"""`cove doctor`, `cove version`, `cove demo` and the help, as programs."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.executors import needs_python
from support.users import CAN_MAP_USERS

import cove
from cove.cli.check import Status
from cove.cli.check_kernel import judge_core_pattern, judge_inotify, judge_snapshots
from cove.cli.check_packages import EXTRAS, judge_bootstrap, judge_console, judge_extras
from cove.cli.check_programs import judge_buckets, judge_node, judge_subordinates, judge_users
from cove.cli.check_trials import judge_ports, judge_setup
from cove.linux.bubblewrap import explain_refusal
from cove.local.extras import install_command

# Ctrl-C comes while the subcommand is being imported, which takes most of the time that a short one takes.
INTERRUPTED_START = """
import os, signal, sys

class Interrupting:
    def find_spec(name, *place):
        if name == "cove.cli.doctor":
            os.kill(os.getpid(), signal.SIGINT)

from cove.cli import main

sys.meta_path.insert(0, Interrupting)
sys.argv = ["cove", "doctor"]
main()
"""

COVE = str(Path(sys.executable).parent / "cove")


def run_cove(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COVE, *arguments], capture_output=True, text=True, timeout=100, env={**os.environ, **environment}
    )


def checks_of(report: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(report)["checks"]}


def test_doctor_finds_that_isolation_works_here() -> None:
    end = run_cove("doctor")
    assert end.returncode == 0, end.stdout
    assert "Isolation works on this machine." in end.stdout


@pytest.mark.parametrize(
    ("pattern", "status"),
    [
        ("core", Status.OK),
        ("/var/crash/%e", Status.OK),
        ("|/usr/lib/systemd/systemd-coredump %P", Status.WARNING),
        ("@/run/coredump.socket", Status.WARNING),
    ],
)
def test_doctor_warns_of_a_handler_for_core_files(pattern: str, status: Status) -> None:
    check = judge_core_pattern(pattern)
    assert (check.status, bool(check.advice)) == (status, status is Status.WARNING)
    assert pattern in check.found


def test_doctor_warns_a_plain_user_of_few_inotify_instances() -> None:
    few = judge_inotify(128, has_own_users=False)
    assert (few.status, "16 for each" in few.found, "sysctl" in few.advice) == (Status.WARNING, True, True)
    assert judge_inotify(1024, has_own_users=False).status is Status.OK
    assert judge_inotify(128, has_own_users=True).status is Status.OK


def test_doctor_says_whether_the_users_of_images_are_real() -> None:
    assert judge_users(can_map=True).status is Status.OK
    in_container = judge_users(can_map=False)
    assert (in_container.status, "from 1879048192 to" in in_container.advice) == (Status.WARNING, True)
    plain = judge_subordinates(0, "newuidmap is not installed", "sudo apt-get install uidmap")
    assert (plain.status, plain.advice.split("`")[1]) == (Status.WARNING, "sudo apt-get install uidmap")
    refused = judge_subordinates(0, "the kernel refuses", "")
    assert (refused.status, "as root" in refused.advice) == (Status.WARNING, True)
    assert judge_subordinates(32, "", "").status is Status.OK
    found = checks_of(run_cove("doctor", "--json").stdout)["users of images"]
    assert (found["status"] == "ok") == CAN_MAP_USERS


def test_doctor_says_how_to_have_every_port_under_a_policy() -> None:
    without = judge_ports(is_without=True)
    assert without.status is Status.WARNING
    assert "`sudo modprobe -a nf_tables" in without.advice
    found = checks_of(run_cove("doctor", "--json").stdout)["network policies"]
    assert (found["status"], found["found"]) == ("ok", judge_ports(is_without=False).found)


def test_doctor_reports_every_check_as_json() -> None:
    end = run_cove("doctor", "--json")
    assert json.loads(end.stdout)["isolation_possible"] is True
    checks = checks_of(end.stdout)
    assert {"Python", "bubblewrap", "namespaces", "seccomp", "cgroups", "state directory", "a real sandbox"} <= set(
        checks
    )
    assert all(check["advice"] for check in checks.values() if check["status"] != "ok")
    assert re.search(r"tree kill: (cgroup|subreaper)", checks["cgroups"]["found"])


def test_doctor_agrees_with_the_sandbox_about_how_trees_are_ended() -> None:
    checks = checks_of(run_cove("doctor", "--json").stdout)
    by_group = re.search(r"tree kill: (\w+)", checks["cgroups"]["found"])
    by_sandbox = re.search(r"tree kill: (\w+)", checks["a real sandbox"]["found"])
    assert by_group is not None
    assert by_sandbox is not None
    assert by_group[1] == by_sandbox[1]


def test_doctor_fails_and_says_why_when_a_sandbox_cannot_start() -> None:
    end = run_cove("doctor", "--json", COVE_HOME="/proc/cove")
    assert end.returncode == 1
    assert json.loads(end.stdout)["isolation_possible"] is False
    checks = checks_of(end.stdout)
    assert checks["state directory"]["status"] == "missing"
    assert "COVE_HOME" in checks["state directory"]["advice"]
    assert checks["a real sandbox"]["status"] == "missing"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_doctor_says_when_the_state_directory_cannot_be_written(other_home: Path) -> None:
    run_cove("doctor", COVE_HOME=str(other_home))
    (other_home / "sandboxes").chmod(0o500)
    check = checks_of(run_cove("doctor", "--json", COVE_HOME=str(other_home)).stdout)["state directory"]
    (other_home / "sandboxes").chmod(0o700)
    assert (check["status"], check["advice"]) == ("missing", "Set COVE_HOME to a directory you can write.")


@needs_python
def test_doctor_runs_code_in_the_environment_for_contexts() -> None:
    check = checks_of(run_cove("doctor", "--json").stdout)["Python contexts"]
    assert (check["status"], check["found"]) == ("ok", os.environ["COVE_PYTHON"])


def test_doctor_says_how_to_get_an_environment_for_contexts(other_home: Path) -> None:
    absent = checks_of(run_cove("doctor", "--json", COVE_PYTHON=str(other_home)).stdout)["Python contexts"]
    assert absent["status"] == "warning"
    assert "cove setup" in absent["advice"]
    (other_home / "bin").mkdir()
    (other_home / "bin/python3").symlink_to("/usr/bin/python3")  # without IPython
    unusable = checks_of(run_cove("doctor", "--json", COVE_PYTHON=str(other_home)).stdout)["Python contexts"]
    assert unusable["status"] == "warning"
    assert "No module named" in unusable["advice"]
    assert "cove setup" in unusable["advice"]


@needs_python
def test_doctor_does_not_blame_the_environment_where_no_sandbox_starts() -> None:
    check = checks_of(run_cove("doctor", "--json", COVE_HOME="/proc/cove").stdout)["Python contexts"]
    assert (check["status"], check["advice"]) == ("warning", "See the other checks.")


def test_doctor_breaks_long_paths_and_cuts_nothing_off() -> None:
    shown = run_cove("doctor", COLUMNS="40").stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert sys.executable[:10] in shown


def test_doctor_fails_where_the_kernel_refuses_namespaces(other_home: Path) -> None:
    place = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    end = subprocess.run(
        [*place, COVE, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "COVE_HOME": str(other_home)},
    )
    assert end.returncode == 1, end.stderr
    checks = checks_of(end.stdout)
    assert (checks["namespaces"]["status"], checks["namespaces"]["found"]) == ("missing", "the kernel refuses them")
    assert checks["a real sandbox"]["status"] == "missing"


def test_version_is_that_of_the_package() -> None:
    assert run_cove("version").stdout == f"cove {cove.__version__}\n"
    assert json.loads(run_cove("version", "--json").stdout)["cove"] == cove.__version__


def test_help_names_every_command_and_ends_well() -> None:
    for arguments in ((), ("--help",)):
        end = run_cove(*arguments)
        assert end.returncode == 0
        for command in ("exec", "run", "setup", "doctor", "demo", "version"):
            assert command in end.stdout


def test_help_loads_neither_rich_nor_a_server() -> None:
    script = "import sys, cove.cli; print([name for name in ('rich', 'aiohttp', 'starlette') if name in sys.modules])"
    end = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert end.stdout == "[]\n"


def test_demo_shows_every_scene_and_leaves_nothing() -> None:
    end = run_cove("demo")
    assert end.returncode == 0, end.stderr
    assert "left running: 0" in end.stdout
    assert "hello from cove" in end.stdout


def test_ctrl_c_while_a_command_is_being_loaded_ends_it_quietly() -> None:
    end = subprocess.run([sys.executable, "-c", INTERRUPTED_START], capture_output=True, text=True, timeout=60)
    assert (end.returncode, end.stdout, end.stderr) == (130, "", "")


def link_of(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # it was just closed
        return ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_verify_takes_what_it_has_prepared_with_it_when_it_is_told_to_stop(number: signal.Signals) -> None:
    screen, terminal = os.openpty()
    with subprocess.Popen([COVE, "verify"], stdout=subprocess.PIPE, stderr=terminal) as program:
        os.close(terminal)
        assert b"trying to break out" in os.read(screen, 1000)
        open_files = [link_of(path) for path in Path(f"/proc/{program.pid}/fd").iterdir()]
        (canary,) = [Path(path) for path in open_files if path.endswith("/canary")]
        program.send_signal(number)
        assert program.wait(timeout=60) == 128 + number
    os.close(screen)
    assert not canary.parent.exists()


def test_doctor_says_what_buckets_lack_and_the_command_that_gives_it() -> None:
    assert judge_buckets(has_rclone=True, has_fuse=True, can_open=True).status is Status.OK
    for has, advice in (
        ((False, True, True), "apt install rclone"),
        ((True, False, True), "apt install fuse3"),
        ((True, True, False), "chmod 666 /dev/fuse"),
    ):
        check = judge_buckets(has_rclone=has[0], has_fuse=has[1], can_open=has[2])
        assert check.status is Status.WARNING
        assert advice in check.advice


def test_doctor_names_each_extra_that_is_missing_and_the_command_that_brings_it() -> None:
    names = [extra for extra, *_ in EXTRAS]
    everything = judge_extras(names)
    assert (everything.status, everything.advice) == (Status.OK, "")
    for name in names:
        check = judge_extras([other for other in names if other != name])
        assert (check.status, check.found.endswith(f"not installed: {name}")) == (Status.WARNING, True)
        assert f"`{install_command(name)}`" in check.advice
    found = checks_of(run_cove("doctor", "--json").stdout)["extras (optional)"]
    assert found["found"].startswith("build, mcp, s3, otel")  # the environment of the tests has these


def test_every_extra_that_doctor_knows_is_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    harnesses = {"inspect", "minisweagent", "swerex"}  # who uses these has them already
    assert {extra for extra, *_ in EXTRAS} == set(project["optional-dependencies"]) - harnesses - {"dev"}


def test_the_command_for_an_extra_is_that_of_what_installed_cove(tmp_path: Path) -> None:
    assert install_command("mcp", tmp_path) == "pip install 'cove[mcp]'"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    assert install_command("mcp", tmp_path) == "pip install 'cove[mcp]'"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.1\n")
    assert install_command("mcp", tmp_path) == f"uv pip install --python {tmp_path} 'cove[mcp]'"
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert install_command("mcp", tmp_path) == "pipx runpip cove install 'cove[mcp]'"


@pytest.mark.parametrize(
    ("anywhere", "path", "version", "found"),
    [
        (None, None, None, "not installed"),
        ("/home/me/bin/node", None, None, "/home/me/bin/node is not below /usr"),
        ("/usr/bin/node", "/usr/bin/node", 18, "/usr/bin/node is 18"),
        ("/usr/bin/node", "/usr/bin/node", None, "/usr/bin/node is not usable"),
    ],
)
def test_doctor_says_how_to_get_a_node_that_is_new_enough(
    anywhere: str | None, path: str | None, version: int | None, found: str
) -> None:
    check = judge_node(anywhere, path, version, has_packages=True)
    assert (check.status, check.found) == (Status.WARNING, found)
    assert "`sudo apt install nodejs`" in check.advice
    assert "npm install --global --prefix /usr/local node@22`" in check.advice


def test_doctor_says_when_the_executor_of_javascript_was_not_built() -> None:
    assert judge_node("/usr/bin/node", "/usr/bin/node", 20, has_packages=True).status is Status.OK
    check = judge_node("/usr/bin/node", "/usr/bin/node", 20, has_packages=False)
    assert (check.status, "`make setup`" in check.advice) == (Status.WARNING, True)


def test_doctor_says_how_to_get_the_console_and_mmdebstrap() -> None:
    assert judge_console(is_built=True).status is Status.OK
    assert "`make console`" in judge_console(is_built=False).advice
    assert judge_bootstrap("/usr/bin/mmdebstrap").status is Status.OK
    assert "`sudo apt install mmdebstrap`" in judge_bootstrap(None).advice


def test_doctor_says_what_snapshots_without_copies_need() -> None:
    assert judge_snapshots(None, can_upgrade=False).status is Status.OK
    assert "COVE_HOME" in judge_snapshots("an overlay itself", can_upgrade=False).advice
    assert "`sudo apt full-upgrade`" in judge_snapshots("the kernel is 5.10", can_upgrade=True).advice
    assert checks_of(run_cove("doctor", "--json").stdout)["snapshots"]["status"] == "ok"


def test_doctor_names_the_package_that_makes_environments() -> None:
    assert judge_setup("none", can_make=True).advice.startswith("`cove setup`")
    assert judge_setup("none", can_make=False).advice.startswith("`sudo apt install python3-venv`")


def test_a_refusal_of_namespaces_is_explained_by_the_switch_that_caused_it(tmp_path: Path) -> None:
    for folder in ("kernel", "user"):
        (tmp_path / folder).mkdir()
    assert explain_refusal("bwrap: no\n", tmp_path) == "bwrap: no"
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    assert "`sudo sysctl -w user.max_user_namespaces=65536`" in explain_refusal("", tmp_path)
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    by_apparmor = explain_refusal("", tmp_path)
    assert (
        "sudo apt install apparmor-profiles && sudo install -m 644 /usr/share/apparmor/extra-profiles/" in by_apparmor
    )
    assert "sudo apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`" in by_apparmor
