"""Install the Python environment that sandboxes see, once: `cove setup`."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cove import executor
from cove.archive.remove_tree import remove_tree
from cove.core.jail import PYTHON_DIRECTORY
from cove.errors import InterpreterNotReady
from cove.linux.file_lock import waiting_lock
from cove.linux.interpreter import find_interpreter
from cove.local.state import default_home, replace_file
from cove.runtime.home import Home

PACKAGES = ("ipython", "numpy", "pandas", "matplotlib")
_REQUIREMENTS = Path(__file__).parent / "requirements"
_FONTS = "import matplotlib.font_manager, matplotlib.pyplot"
_SITE = "_cove_site.py"
_PATH_FILE = ("cove.pth", "import _cove_site; _cove_site.arrange()\n")
# Works wherever the environment is bound.
_PIP = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python3" -m pip "$@"\n'
_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_SECONDS = 1200.0
_SHEBANG = re.compile(rb"\A#!(?!/bin/sh).*\n")


def prepare_python(tell: Callable[[str], None], *, anew: bool = False) -> Path:
    """Make the environment for code contexts if it is not there; `tell` hears what is going on. Blocks."""
    home = Home(default_home())
    home.open()
    with waiting_lock(home.path / "setup.lock"):
        return _prepare(home.path / "python", tell, anew=anew)


def _prepare(target: Path, tell: Callable[[str], None], *, anew: bool) -> Path:
    building = target.with_name(".python-new")
    remove_tree(str(building))  # of one that was killed
    if target.exists() and not anew:
        _furnish(target)
        return target
    interpreter = find_interpreter(0 if os.geteuid() == 0 else None)
    if interpreter is None:
        raise InterpreterNotReady("no Python that sandboxes could run: `sudo apt install python3 python3-venv`")
    try:
        tell(f"making a Python environment for sandboxes in {target}")
        _run([interpreter.path, "-m", "venv", str(building)])
        tell(f"installing {', '.join(PACKAGES)} (about half a minute)")
        _install(building, find_requirements(interpreter.version))
        tell("preparing fonts")
        fonts = building / "share" / "cove" / "matplotlib"
        fonts.mkdir(parents=True)
        _run([str(building / "bin" / "python3"), "-c", _FONTS], MPLCONFIGDIR=str(fonts))
        _furnish(building)
        _make_readable(building)
        remove_tree(str(target))
        building.rename(target)
    finally:
        remove_tree(str(building))
    return target


def find_requirements(version: tuple[int, int]) -> Path:
    """Find the pinned packages with the hashes of their wheels, for that Python: scripts/make_requirements.py."""
    name = ".".join(map(str, version))
    path = _REQUIREMENTS / f"python-{name}.txt"
    if not path.exists():
        raise InterpreterNotReady(
            f"this version of Cove knows no packages for Python {name}: make an environment of your own that has "
            "IPython in it, and set COVE_PYTHON to its directory"
        )
    return path


def _install(environment: Path, requirements: Path) -> None:
    """Nothing but the wheels whose hashes are written there, wherever they come from."""
    pip = [str(environment / "bin" / "python3"), "-m", "pip", "install", "--quiet"]
    _run([*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements)])


def _furnish(environment: Path) -> None:
    """Let its programs run where sandboxes see it, and let pip install for the sandbox's user."""
    source = Path(executor.__file__).parent / _SITE
    for packages in environment.glob("lib/python*/site-packages"):
        _write_once(packages / _SITE, source.read_bytes())
        _write_once(packages / _PATH_FILE[0], _PATH_FILE[1].encode())
    for script in (environment / "bin").iterdir():
        if not script.is_symlink() and os.access(script, os.X_OK):
            content = script.read_bytes()
            is_pip = script.name.startswith("pip")
            text = _PIP.encode() if is_pip else _SHEBANG.sub(f"#!{PYTHON_DIRECTORY}/bin/python3\n".encode(), content)
            _write_once(script, text, mode=0o755)


def _run(command: list[str], **environment: str) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_STOP)  # until the program is known that has to end too
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask),  # noqa: PLW1509  # it takes no lock
        )
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        output, errors = process.communicate(timeout=_LONGEST_SECONDS)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode != 0:
        if "ensurepip" in output + errors:
            raise InterpreterNotReady("Python cannot make environments here: `sudo apt install python3-venv`")
        reason = (errors or output).strip()[-800:]
        raise InterpreterNotReady(f"{' '.join(command[:4])} failed (check the network): {reason}")


def _make_readable(directory: Path) -> None:
    """Sandboxes run as users of their own."""
    subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True, timeout=120)


def _write_once(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    if not path.exists() or path.read_bytes() != content:
        replace_file(path, content, mode=mode)
