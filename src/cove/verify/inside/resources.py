"""Attempts at resource exhaustion, in a sandbox with limits; each stops at what a machine can well bear."""

import mmap
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cove.verify.inside.harness import Blocked, Facts, probe

AREA = "resources"

MEMORY_BYTES = 192 << 20
PROCESSES = 150
FILE_BYTES = 48 << 20
FILES = 3000
OPEN_FILES = 600
SHARED_BYTES = 300 << 20
RUN_BYTES = 96 << 20


def _in_child(work: Callable[[], object]) -> str:
    """Run in a child: what the OOM killer ends must not be the attempt itself, which has to tell."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except (OSError, MemoryError):
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Blocked(f"it was ended by signal {os.WTERMSIG(status)}")
    if os.WEXITSTATUS(status):
        raise Blocked("no more was given")
    return "all was given"


@probe(AREA, "more memory than the limit can be used")
def use_memory(facts: Facts) -> str:
    return _in_child(lambda: bytearray(b"x") * MEMORY_BYTES)


@probe(AREA, "more memory than the limit can be used by a file without a name")
def use_memory_by_a_file(facts: Facts) -> str:
    def work() -> None:
        file = os.memfd_create("x")
        for _ in range(MEMORY_BYTES >> 20):
            os.write(file, bytes(1 << 20))

    return _in_child(work)


@probe(AREA, "more memory than the limit can be used by shared pages")
def use_memory_by_shared_pages(facts: Facts) -> str:
    def work() -> None:
        area = mmap.mmap(-1, MEMORY_BYTES)
        for at in range(0, MEMORY_BYTES, 4096):
            area[at] = 1

    return _in_child(work)


def _fill(path: str, size: int) -> str:
    try:
        with open(path, "wb") as file:
            file.writelines(bytes(1 << 20) for _ in range(size >> 20))
    finally:
        Path(path).unlink(missing_ok=True)
    return f"{size >> 20} MiB were written"


@probe(AREA, "memory can be used up by files in /dev/shm")
def fill_shared_memory(facts: Facts) -> str:
    return _in_child(lambda: _fill(f"/dev/shm/.cove-verify-{os.getpid()}", SHARED_BYTES))


@probe(AREA, "memory can be used up by files in /run")
def fill_run(facts: Facts) -> str:
    return _in_child(lambda: _fill(f"/run/.cove-verify-{os.getpid()}", RUN_BYTES))


@probe(AREA, "more processes than the limit can be started")
def start_processes(facts: Facts) -> str:
    children = []
    try:
        for _ in range(PROCESSES):
            pid = os.fork()
            if not pid:
                time.sleep(100)
                os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return f"{len(children)} were started"


@probe(AREA, "more threads than the limit can be started")
def start_threads(facts: Facts) -> str:
    done = threading.Event()
    threads = []
    threading.stack_size(64 << 10)
    try:
        for _ in range(PROCESSES):
            threads.append(threading.Thread(target=done.wait, daemon=True))
            threads[-1].start()
    except RuntimeError as error:
        raise Blocked(str(error)) from None
    finally:
        done.set()
    return f"{len(threads)} were started"


@probe(AREA, "more files than the limit can be open")
def open_files(facts: Facts) -> str:
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(OPEN_FILES)]
    return f"{len(opened)} are open"


@probe(AREA, "more disk than the limit can be used")
def fill_the_disk(facts: Facts) -> str:
    return _in_child(lambda: _fill(f"{facts['work']}/.cove-verify-{os.getpid()}", FILE_BYTES))


@probe(AREA, "more of the processor than the limit can be used")
def burn_the_processor(facts: Facts) -> str:
    began = time.monotonic()
    while time.monotonic() < began + 1:
        pass
    used = resource.getrusage(resource.RUSAGE_SELF)
    share = (used.ru_utime + used.ru_stime) / (time.monotonic() - began)
    if share < 0.6:
        raise Blocked(f"{share:.2f} of a processor were given")
    return f"{share:.2f} of a processor were given"


@probe(AREA, "more files than the limit can be made")
def make_files(facts: Facts) -> str:
    """Make files, and keep them for a while: where the limit is held by measuring, they must be there to be counted."""
    folder = f"{facts['work']}/.cove-verify-{os.getpid()}"
    os.mkdir(folder)
    try:
        for number in range(FILES):
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
        time.sleep(float(facts["linger_seconds"]))
    finally:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    return f"{FILES} were made"
