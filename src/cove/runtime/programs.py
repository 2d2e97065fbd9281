"""Install the programs that run inside sandboxes (agent, executor), once for every version. Blocks."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from cove import agent, archive, attach, executor, shell
from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.errors import SandboxUnavailable
from cove.linux.interpreter import Interpreter
from cove.runtime import agent_compiler

PROLOGUE = "session.bash"
PACKAGES = "node_modules"
AGENT_SOURCES = "agent"
_COMPILE_SECONDS = 60.0
_ATTACH_MODULES = ("kernel", "performer", "program", "workbench")

_CACHE = (
    "import py_compile, sys; mode = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
    "for source in sys.argv[1:]: py_compile.compile(source, doraise=True, invalidation_mode=mode)"
)


def prepare_agent(directory: Path, interpreter: Interpreter) -> Path:
    """The agent, compiled for that interpreter, below that directory."""
    folders = (Path(agent.__file__).parent, Path(archive.__file__).parent)
    files = {path.name: path.read_bytes() for folder in folders for path in sorted(folder.glob("[!_]*.py"))}
    files[PROLOGUE] = (Path(shell.__file__).parent / PROLOGUE).read_bytes()
    return _prepare_compiled(directory, interpreter, files)


def prepare_attach(directory: Path, interpreter: Interpreter) -> Path:
    """The helper that enters jails, compiled for that interpreter, below that directory."""
    files = {f"{name}.py": (Path(attach.__file__).parent / f"{name}.py").read_bytes() for name in _ATTACH_MODULES}
    return _prepare_compiled(directory, interpreter, files) / "program.pyc"


def _prepare_compiled(directory: Path, interpreter: Interpreter, files: dict[str, bytes]) -> Path:
    version = ".".join(map(str, interpreter.version))
    compiler = Path(agent_compiler.__file__).read_bytes()
    digest = hashlib.sha256(b"\0".join([interpreter.path.encode(), version.encode(), compiler, *files.values()]))
    target = directory / digest.hexdigest()[:16]
    if not target.exists():
        _compile(interpreter, files, target)
    return target


def prepare_executor(directory: Path, interpreter: Interpreter) -> Path:
    """Install the executors below that directory; compiled in case the environment has the same Python.

    The agent's sources are there too, for the Python of an image, which may be another.
    """
    source = Path(executor.__file__).parent
    digest = hashlib.sha256()
    own = Path(agent.__file__).parent
    for path in sorted(path for folder in (source, own) for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    packages = source / PACKAGES
    digest.update(f"{interpreter.path} {interpreter.version}".encode())
    digest.update(b"%d" % (packages.stat().st_mtime_ns if packages.exists() else 0))
    target = directory / digest.hexdigest()[:16]
    if not target.exists():
        building = target.with_name(f".{new_identifier()}")
        shutil.copytree(source, building, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(own, building / AGENT_SOURCES, ignore=shutil.ignore_patterns("__pycache__"))
        modules = [path.name for path in building.glob("*.py")]
        _run([interpreter.path, "-I", "-S", "-c", _CACHE, *modules], building)
        for path in (building, *building.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        _put_in_place(building, target)
    return target


def _compile(interpreter: Interpreter, files: dict[str, bytes], target: Path) -> None:
    building = target.with_name(f".{new_identifier()}")
    building.mkdir(mode=0o755)
    building.chmod(0o755)
    for name, content in files.items():
        (building / name).write_bytes(content)
    sources = [name for name in files if name.endswith(".py")]
    compiler = [interpreter.path, "-I", "-S", agent_compiler.__file__]
    _run([*compiler, *sources], building)
    for path in building.iterdir():
        path.chmod(0o644)
    _put_in_place(building, target)


def _run(compiler: list[str], building: Path) -> None:
    """Compile what is in that directory, which is removed when that fails."""
    try:
        subprocess.run(compiler, cwd=building, check=True, timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired as error:
        remove_tree(str(building))
        raise SandboxUnavailable(
            f"{compiler[0]} did not compile the programs of sandboxes within {_COMPILE_SECONDS:g} s:"
            " the machine may be too busy, try again"
        ) from error


def _put_in_place(building: Path, target: Path) -> None:
    try:
        building.rename(target)
    except OSError:
        remove_tree(str(building))  # another program was first
