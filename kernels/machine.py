"""Boot a kernel in QEMU, without KVM, and collect what the checks inside say."""

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels.boot_files import BootFiles
from kernels.cases import Case

_MEMORY = "2048"
_PROCESSORS = "1"
_LONGEST_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Result:
    """How one check ended for one user: `ok`, `refused` or `failed`, with the reason or what was found."""

    user: str
    check: str
    end: str
    detail: str
    seconds: float


def boot(case: Case, files: BootFiles, root: Path, console: Path, parts: str) -> list[Result]:
    """Run the checks on one machine; what its kernel and its programs print goes to `console`.

    One that does not come to an end is switched off; what it has said by then counts.
    """
    words = ["console=ttyS0", "panic=-1", "quiet", "no_timer_check", "apparmor=1", "security=apparmor"]
    words += [f"cove.sysctl={name}={value}" for name, value in case.sysctls.items()]
    words += [f"cove.parts={parts}"]
    words += [f"cove.profile={case.profile}"] if case.profile else []
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        command = [
            *(
                "qemu-system-x86_64",
                "-machine",
                "q35",
                "-accel",
                "tcg,thread=single,tb-size=512",
                "-cpu",
                "max",
                "-nodefaults",
                "-display",
                "none",
            ),
            *("-icount", "shift=0,sleep=on", "-rtc", "clock=vm"),
            *("-smp", _PROCESSORS, "-m", _MEMORY, "-no-reboot", "-nic", "none"),
            *("-kernel", str(files.kernel), "-initrd", str(files.initial), "-append", " ".join(words)),
            *("-drive", f"file={root},if=virtio,format=raw,snapshot=on"),
            *("-serial", f"file:{console}", "-serial", f"file:{results}"),
        ]
        with suppress(subprocess.TimeoutExpired):
            environment = {"TMPDIR": directory, "PATH": os.environ["PATH"]}
            subprocess.run(command, check=True, timeout=_LONGEST_SECONDS, env=environment)
        return [Result(**json.loads(line)) for line in results.read_text().splitlines() if line.strip()]
