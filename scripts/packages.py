"""Install the wheel on clean systems, as a user does, and run it: `make packages`.

    packages.py [--mirror ubuntu=URI] [--python PATH] [SYSTEM ...]

Each system is bootstrapped in a cache from the mirror that this machine's apt has, once. Cove is installed
there by pip, pipx and uv, without a network, from wheels that were fetched before. --python adds a Python of this
machine: for versions that no system has. Prints a table; ends with 1 if a step failed. Needs root and mmdebstrap.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

End = subprocess.CompletedProcess[str]

ROOT = Path(__file__).parent.parent
PLACE = Path("/var/cache/cove-tests/packages")  # removed by `make clean`
SYSTEMS = {
    "bookworm": ("debian", "Debian 12"),
    "trixie": ("debian", "Debian 13"),
    "forky": ("debian", "Debian testing"),
    "noble": ("ubuntu", "Ubuntu 24.04"),
}
PACKAGES = "python3,python3-venv,bubblewrap,ca-certificates"
TOOLS = ("pip", "pipx", "uv")
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/wheels",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_OFFLINE": "1",
    "UV_FIND_LINKS": "/wheels",
    "UV_NO_INDEX": "1",
    "UV_PYTHON_DOWNLOADS": "never",
}
# By whom and by what, the commands that install, and whether code contexts are set up too.
INSTALLATIONS = (
    ("root", "pip", "python3 -m venv ~/venv && ~/venv/bin/pip install -q cove", False),
    ("user", "pip", "python3 -m venv ~/venv && ~/venv/bin/pip install -q cove", True),
    ("user", "pipx", "/tools/bin/pipx install -q cove", False),
    ("user", "uv", "/tools/bin/uv tool install -q cove", False),
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEADS = ("install", "version", "doctor", "exec", "setup", "demo")


def _steps(install: str, *, is_set_up: bool) -> dict[str, str]:
    """Return the commands of each step. The demo says how to get what its last scene lacks, or lacks nothing."""
    shown = "! grep -q 'cove setup' demo.txt" if is_set_up else "grep -q 'run `cove setup` once' demo.txt"
    steps = {
        "install": install,
        "version": "cove version",
        "doctor": "cove doctor",
        "exec": "test \"$(cove exec 'echo inside')\" = inside",
        "setup": "cove setup",
        "demo": f"cove demo > demo.txt && grep -q 'hello from cove' demo.txt && {shown}",
    }
    return {name: command for name, command in steps.items() if is_set_up or name != "setup"}


@dataclass
class Row:
    """One installation, and how each of its steps ended."""

    system: str
    python: str
    user: str
    tool: str
    steps: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not any(text.startswith("FAILED") for text in self.steps.values())


class System:
    """A root file system that programs run in, without a network: as root or as a plain user."""

    def __init__(self, suite: str, wheels: Path) -> None:
        self._root, self._wheels = PLACE / suite, wheels

    def run(self, user: str, home: str, command: str) -> End:
        places = ["--bind", str(self._root), "/", "--dev-bind", "/dev", "/dev", "--ro-bind", "/sys", "/sys"]
        places += ["--tmpfs", "/run", "--tmpfs", "/tmp", "--ro-bind", str(self._wheels), "/wheels"]
        # A proc that bwrap mounts is covered in parts: no second one could be mounted below it.
        prologue = 'mount -t proc proc /proc && mkdir -p "$HOME" && cd "$HOME" && chmod 1777 /tmp && '
        become = "chown 1000:1000 . && exec setpriv --reuid=1000 --regid=1000 --clear-groups "
        prologue += become if user != "root" else "exec "
        variables = {"HOME": home, "LANG": "C.UTF-8", **OFFLINE, "PATH": f"{home}/venv/bin:{home}/.local/bin:{_PATH}"}
        words = [word for name, value in variables.items() for word in ("--setenv", name, value)]
        jail = [
            "bwrap",
            *places,
            "--unshare-pid",
            "--unshare-net",
            "--die-with-parent",
            "--cap-add",
            "ALL",
            "--clearenv",
        ]
        return _run([*jail, *words, "sh", "-c", f'{prologue}sh -c "$0"', command])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("systems", nargs="*", default=list(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--mirror", action="append", default=[], metavar="DISTRIBUTION=URI")
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        print("This needs root and mmdebstrap: `sudo apt install mmdebstrap`.", file=sys.stderr)
        return 2
    mirrors = {**_own_mirror(), **dict(word.split("=", 1) for word in options.mirror)}
    wheel = _build()
    rows = [row for suite in options.systems for row in _try_system(suite, mirrors, wheel)]
    rows += [_try_python(path, wheel) for path in options.python]
    _print(rows)
    return 0 if all(row.is_good for row in rows) else 1


def _own_mirror() -> dict[str, str]:
    """Return where this machine's apt has its own distribution from."""
    facts = platform.freedesktop_os_release()
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.*"))):
        text = path.read_text() if path.is_file() else ""
        line = re.search(rf"^deb +(?:\[.*\] +)?(\S+) +{facts['VERSION_CODENAME']} ", text, re.MULTILINE)
        stanza = re.search(rf"^URIs: *(\S+).*\nSuites:.*\b{facts['VERSION_CODENAME']}(?: |$)", text, re.MULTILINE)
        if found := line or stanza:
            return {facts["ID"]: found[1]}
    return {}


def _build() -> Path:
    target = PLACE / "dist"
    shutil.rmtree(target, ignore_errors=True)
    _must([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(target)], cwd=ROOT)
    (wheel,) = target.glob("*.whl")
    return wheel


def _try_system(suite: str, mirrors: Mapping[str, str], wheel: Path) -> Iterator[Row]:
    distribution, name = SYSTEMS[suite]
    if distribution not in mirrors:
        yield Row(name, "", "", "", {"version": f"not tried: this machine's apt has no {distribution} (--mirror)"})
        return
    print(f"{name} ...", file=sys.stderr)
    if not (PLACE / suite / "etc/os-release").exists():
        components = "main universe" if distribution == "ubuntu" else "main"
        source = f"deb {mirrors[distribution]} {suite} {components}"
        _must(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(PLACE / suite), source])
        with (PLACE / suite / "etc/passwd").open("a") as users:
            users.write("user:x:1000:1000::/home/user:/bin/sh\n")
        (PLACE / suite / "wheels").mkdir()
    python = (PLACE / suite / "usr/bin/python3").readlink().name.removeprefix("python")
    wheels = _fetch(python, wheel)
    shutil.rmtree(PLACE / suite / "tools", ignore_errors=True)
    shutil.rmtree(PLACE / suite / "try", ignore_errors=True)
    shutil.rmtree(PLACE / suite / "var/lib/cove", ignore_errors=True)
    (PLACE / suite / "try").mkdir()
    system = System(suite, wheels)
    prepared = system.run("root", "/root", "python3 -m venv /tools && /tools/bin/pip install -q pipx uv")
    if prepared.returncode != 0:
        raise SystemExit(prepared.stderr)
    for user, tool, install, is_set_up in INSTALLATIONS:
        row = Row(name, python, user, tool)
        home = f"/try/{user}-{tool}"
        for step, command in _steps(install, is_set_up=is_set_up).items():
            row.steps[step] = _judge(row, step, partial(system.run, user, home, command))
        yield row


def _try_python(path: str, wheel: Path) -> Row:
    """Install into an environment of that Python on this machine, and run it with a state directory of its own."""
    version = _must([path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]).strip()
    row = Row("this machine", version, "root", "pip")
    place = PLACE / f"python-{version}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    variables = {**OFFLINE, "PIP_FIND_LINKS": str(_fetch(version, wheel)), "HOME": str(place)}
    variables |= {"COVE_HOME": str(place / "state"), "PATH": f"{place}/venv/bin:{_PATH}", "LANG": "C.UTF-8"}
    install = f"{path} -m venv venv && venv/bin/pip install -q cove"
    for step, command in _steps(install, is_set_up=False).items():
        row.steps[step] = _judge(row, step, partial(_run, ["sh", "-c", command], cwd=place, env=variables))
    return row


def _judge(row: Row, step: str, act: Callable[[], End]) -> str:
    """Run a step, unless one before it failed, and say how long it took."""
    if not row.is_good:
        return "-"
    began = time.monotonic()
    end = act()
    seconds = f"{time.monotonic() - began:.1f} s"
    result = f"FAILED ({end.returncode})" if end.returncode else seconds
    told = f"\n{end.stdout[-3000:]}{end.stderr[-3000:]}" if end.returncode else ""
    print(f"{row.system}, Python {row.python}, {row.user}, {row.tool}: {step} {result}{told}", file=sys.stderr)
    return result


def _fetch(python: str, wheel: Path) -> Path:
    """Fetch all wheels for that Python: of Cove, of what it needs, of the tools, and of `cove setup`."""
    target = PLACE / "wheels" / python
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("cove-*.whl"):
        old.unlink()
    fetch = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--only-binary", ":all:"]
    fetch += ["--python-version", python, "--dest", str(target), "--find-links", str(target)]
    fetch += [word for name in PLATFORMS for word in ("--platform", name)]
    _must([*fetch, str(wheel), *TOOLS])
    _must([*fetch, "--no-deps", "-r", str(ROOT / f"src/cove/runtime/requirements/python-{python}.txt")])
    return target


def _run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> End:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=1200, check=False)


def _must(command: Sequence[str], *, cwd: Path | None = None) -> str:
    end = _run(command, cwd=cwd)
    if end.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{end.stdout}{end.stderr}")
    return end.stdout


def _print(rows: Sequence[Row]) -> None:
    heads = ["system", "Python", "user", "by", *HEADS]
    lines = [
        [row.system, row.python, row.user, row.tool, *(row.steps.get(step, "") for step in heads[4:])] for row in rows
    ]
    widths = [max(len(line[column]) for line in (heads, *lines)) for column in range(len(heads))]
    for line in (heads, ["-" * width for width in widths], *lines):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |")


if __name__ == "__main__":
    sys.exit(main())
