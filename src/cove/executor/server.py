"""The fork server of Python contexts: IPython is imported once, then it serves like init does.

Its launchers fork an executor instead of spawning a program. It has one thread when it forks: fork(2).
"""

import gc

gc.disable()  # until everything is imported

import _signal
import os
import posix
import sys

if __name__ == "__main__":
    # Inside a sandbox these packages are all there is of Cove.
    for name, directory in (("cove.agent", sys.argv[1]), ("cove.executor", os.path.dirname(os.path.abspath(__file__)))):
        sys.modules["cove"] = sys.modules[name] = package = type(sys)(name)
        package.__path__ = [directory]

from cove.agent import init, kernel, launcher
from cove.executor import borrowing, executor
from cove.executor.fork_launcher import ForkLauncher

THREADS = "/proc/self/task"


def main() -> None:
    """Import what contexts will want, check that forking is safe, and serve."""
    posix.dup2(int(sys.argv[4]), init.CONTROL, False)
    borrowing.borrow(sys.argv[3])
    os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    executor.warm_up(has_packages=sys.argv[2] == "packages")
    if len(os.listdir(THREADS)) != 1:
        sys.exit("a preloaded module started a thread: %s" % os.listdir(THREADS))
    kernel.guard_process()
    _signal.signal(_signal.SIGCHLD, launcher.ignore)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    server = init.Init(init.control_socket(), init.make_wakeup(), namespace=False, launcher_type=ForkLauncher)
    try:
        server.send(b"hello")
        server.serve()
    finally:
        server.leave()


if __name__ == "__main__":
    main()
