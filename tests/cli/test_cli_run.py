"""`cove run` and `cove setup` as programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.executors import needs_python
from support.leaks import processes_below
from support.programs import wait_until_gone

COVE = str(Path(sys.executable).parent / "cove")

pytestmark = [needs_python, pytest.mark.pure]


def cove_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COVE, "run", *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def test_a_file_runs_and_its_results_and_streams_are_printed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'é' * 2\n", encoding="utf-8")
    end = cove_run(str(program))
    assert (end.stdout, end.stderr, end.returncode) == ("out\n'éé'\n", "err\n", 0)


def test_code_on_the_command_line_runs_with_the_variables_given() -> None:
    end = cove_run("-c", "import os; os.environ['A'] + os.getcwd()", "--language", "python", "--env", "A=b=c")
    assert (end.stdout, end.returncode) == ("'b=c/workspace'\n", 0)


def test_code_comes_from_standard_input_for_a_dash() -> None:
    end = subprocess.run([COVE, "run", "-"], input="x = 6\nx * 7\n", capture_output=True, text=True, timeout=60)
    assert (end.stdout, end.stderr, end.returncode) == ("42\n", "", 0)


def test_an_error_goes_to_stderr_with_its_traceback_and_ends_with_1() -> None:
    end = cove_run("-c", "print('before')\n1 / 0")
    assert (end.stdout, end.returncode) == ("before\n", 1)
    assert "----> 2 1 / 0" in end.stderr
    assert end.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(("size", "written"), [(10, 100), (10 << 20, 25)])
def test_images_are_written_in_bounded_number_and_size(tmp_path: Path, size: int, written: int) -> None:
    code = f"for _ in range(120): display({{'image/png': b'x' * {size}}}, raw=True)"
    end = cove_run("-c", code, "--images", str(tmp_path))
    images = sorted(tmp_path.iterdir())
    assert len(images) <= written
    assert sum(image.stat().st_size for image in images) <= 256 << 20
    assert "no more images are written" in end.stderr or "some output was not kept" in end.stderr
    assert all(image.stat().st_size == size for image in images)


def test_an_image_replaces_a_link_that_was_planted_and_does_not_follow_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    (shared / "image-1.png").symlink_to(precious)
    end = cove_run("-c", "display({'image/png': b'x'}, raw=True)", "--images", str(shared))
    assert (end.returncode, precious.read_text(encoding="utf-8")) == (0, "kept")
    assert (shared / "image-1.png").read_bytes() == b"x"


def test_code_that_ends_its_own_process_ends_with_1() -> None:
    end = cove_run("-c", "import os; os._exit(7)")
    assert end.returncode == 1
    assert "exit code 7" in end.stderr


def test_pictures_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    code = (
        "import matplotlib.pyplot as plt\nfrom IPython.display import SVG\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\nplt.plot([1]);"
    )
    end = cove_run("-c", code, "--images", str(tmp_path / "new"))
    assert end.returncode == 0, end.stderr
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["image-1.svg", "image-2.png"]
    assert (tmp_path / "new/image-2.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "<Figure size 640x480 with 1 Axes>" in end.stdout
    assert cove_run("-c", code).returncode == 0


def test_a_timeout_ends_with_124_and_what_was_printed() -> None:
    end = cove_run("-c", "print('on')\nwhile True: pass", "--timeout", "0.5")
    assert (end.stdout, end.returncode) == ("on\n", 124)
    assert "the time is up" in end.stderr


def test_output_comes_while_the_code_runs_and_a_signal_ends_it() -> None:
    code = "print('ready')\nimport time; time.sleep(1000)"
    with subprocess.Popen([COVE, "run", "-c", code], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM


def test_a_mounted_directory_is_there_and_the_network_is_not(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    (tmp_path / "data").write_text("shown")
    code = "import os; open('/data/data').read(), os.listdir('/sys/class/net') if os.path.exists('/sys') else []"
    end = cove_run("-c", code, "--mount", f"{tmp_path}:/data")
    assert (end.stdout, end.returncode) == ("('shown', [])\n", 0), end.stderr


def test_without_isolation_it_runs_and_says_so() -> None:
    end = cove_run("-c", "import numpy; 6 * 7", "--isolation", "none")
    assert (end.stdout, end.returncode) == ("42\n", 0)
    assert "no isolation" in end.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the two"),
        (["file.py", "-c", "1"], "one of the two"),
        (["no-such-file.py"], "cove: no-such-file.py cannot be read: No such file or directory\n"),
        (["-c", "print(1)", "--images", "/proc/none"], "cove: --images /proc/none: No such file or directory: name a"),
        (["-c", "print(1)", "--images", "/dev/null"], "cove: --images /dev/null: File exists: name a directory"),
        (["file.txt"], "--language"),
        (["-c", "1", "--language", "cobol"], "python, javascript, typescript"),
        (["-c", "1", "--env", "A"], "NAME=VALUE"),
        (["-c", "1", "--timeout", "-1"], "timeout"),
    ],
)
def test_what_is_not_asked_for_properly_ends_with_125(arguments: list[str], message: str) -> None:
    end = cove_run(*arguments)
    assert (end.returncode, end.stdout) == (125, "")
    assert message in end.stderr
    assert "Traceback" not in end.stderr


def test_without_an_environment_it_ends_with_125_and_says_what_to_do(other_home: Path) -> None:
    end = cove_run("-c", "1", COVE_PYTHON=str(other_home))
    assert end.returncode == 125
    assert "cove setup" in end.stderr


def test_setup_leaves_an_environment_that_is_there_and_repairs_what_it_added(other_home: Path) -> None:
    environment = other_home / "python"
    (environment / "bin").mkdir(parents=True)
    packages = environment / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (environment / "bin/tool").write_text("#!/somewhere/.python-abc/bin/python3\nprint(1)\n")
    (environment / "bin/pip3").write_text("#!/somewhere/.python-abc/bin/python3\n")
    for script in (environment / "bin").iterdir():
        script.chmod(0o755)
    for _ in range(2):
        end = subprocess.run(
            [COVE, "setup"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COVE_HOME": str(other_home), "COVE_PYTHON": ""},
        )
        assert (end.returncode, end.stdout) == (0, f"Code contexts run on {environment}\n")
    assert (environment / "bin/tool").read_text() == "#!/opt/cove/python/bin/python3\nprint(1)\n"
    assert "-m pip" in (environment / "bin/pip3").read_text()
    assert os.access(environment / "bin/pip3", os.X_OK)
    assert sorted(path.name for path in packages.iterdir()) == ["_cove_site.py", "cove.pth"]


def test_setup_tells_when_contexts_run_on_another_environment(other_home: Path) -> None:
    (other_home / "python/bin").mkdir(parents=True)
    environment = {**os.environ, "COVE_HOME": str(other_home), "COVE_PYTHON": "/srv/python"}
    end = subprocess.run([COVE, "setup"], capture_output=True, text=True, timeout=60, env=environment)
    assert end.stdout == f"{other_home}/python is ready, but COVE_PYTHON is set: code contexts run on /srv/python\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_setup_that_is_told_to_stop_leaves_nothing_half_made(other_home: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "COVE_HOME": str(other_home)}
    with subprocess.Popen([COVE, "setup"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as program:
        assert program.stdout is not None
        assert b"making a Python environment" in program.stdout.readline()
        assert b"installing" in program.stdout.readline()
        program.send_signal(number)
        assert (program.wait(timeout=60), program.communicate()) == (128 + number, (b"", b""))
    assert not list(other_home.glob("*python*"))


def test_setup_removes_what_one_that_was_killed_had_begun(other_home: Path) -> None:
    environment = {**os.environ, "COVE_HOME": str(other_home), "COVE_PYTHON": ""}
    command = [COVE, "setup"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as program:
        assert program.stdout is not None
        assert b"making a Python environment" in program.stdout.readline()
        assert b"installing" in program.stdout.readline()
        children = list(processes_below(program.pid))
        os.killpg(program.pid, signal.SIGKILL)
    assert wait_until_gone(children) == []
    assert [path.name for path in other_home.glob("*python*")] == [".python-new"]
    (other_home / "python/bin").mkdir(parents=True)
    assert subprocess.run([COVE, "setup"], capture_output=True, timeout=60, env=environment).returncode == 0
    assert [path.name for path in other_home.glob("*python*")] == ["python"]
