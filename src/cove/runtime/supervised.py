"""One process from spawn to exit record: the core under every surface.

Theory of operation. The process is spawned by a launcher inside, with pipes made here. Its output is pumped into a sink
while it runs. It ends in one of three ways: the launcher reports its exit; a deadline or the caller ends its whole
tree (TERM, grace, then KILL by control group and by init); or the sandbox is lost.

Two futures tell the outside, each set once. `started`: the process runs, or never will. `ended`: the exit record, after
the last byte is in the sink. `started` is set before `ended`, however it ends.

Which bytes are the process's? When the process itself has exited, exactly those then in its pipes: `finish` takes as
many as FIONREAD says. A left-over child may hold the pipes and print for ever; it delays no result. Pipes that are
still held go to the launcher, which drains them: closing them would kill such a child by SIGPIPE. When the tree is
being ended, output is taken until nothing of the tree is left, since what it says while it shuts down belongs to it.

When is it over? `_complete` decides, and is called after every event; it sets `ended` when three things hold:

- the exit of the process is known (`_main_exit`);
- nobody still asks whether it was the OOM killer (`_is_asking`), which only a control group can tell, in a thread;
- if it was ended from here, its tree is empty (`_is_tree_empty`): after a kill, nothing is left when `ended` is set.

The launcher is ours from `start` until its tree is empty. Then `_release` gives it back to the pool, exactly once. A
launcher that is being killed is not given back by `empty`, but by the kill, which closes it.

Killing is one task however often it is asked for (TreeKill). It belongs to the sandbox's background tasks, not to the
caller: a caller that is cancelled does not leave a half-killed tree. Of several ends under way the earliest counts; the
first one named is the outcome.

What can go wrong, and why it does not:

- The launcher is killed before it reads the request: the kernel says so (ECONNRESET on a SEQPACKET socket with unread
  packets). `never_started` is set, and the spawner hands the request to another launcher: retrying is safe.
- The launcher is killed later: the command counts as ended by SIGKILL, since init kills all that loses its launcher.
- The launcher is held up by code that stops its child before execve(2): it is woken every half second, and killed when
  the bound for a start has passed (`expect_start`).
- The deadline races with the exit. Both are events of one loop, and the first decides: an exit that was reported keeps
  its outcome; one that is reported after the deadline fired is `timed_out`, whatever its status.
- The process exits with 137 of its own accord: `out_of_memory` only if the kernel's counter has risen (MemoryKills).
- A message comes twice or out of order (`exit` before `started`): ProtocolError, which ends the sandbox. Everything
  from inside is untrusted.
- The tree cannot be killed within a bound: the sandbox is lost, which ends its pid namespace; `lose` sets everything.
- The sink is slow or paused: the pipe fills and the process waits in write(2), which is the backpressure we want.
"""

import asyncio
import os
import signal as signals
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import msgspec

from cove.agent.protocol import MOST_ERRNO, ProtocolError, number
from cove.core.command import Invocation
from cove.core.output_log import STDERR, STDOUT
from cove.errors import CoveError
from cove.model import Outcome, ProcessExit
from cove.runtime.clock import ClockTimer
from cove.runtime.exit_record import (
    KILLED_EXIT_CODE,
    Usage,
    check_wait_status,
    exit_by_refusal,
    exit_by_status,
    exit_with_sandbox,
)
from cove.runtime.family import SPAWNED, Family, Lease, Member, Parent
from cove.runtime.gate import Gate
from cove.runtime.launcher import Launcher, LauncherPool
from cove.runtime.memory_kills import MemoryKills
from cove.runtime.process_output import ProcessOutput, Take
from cove.runtime.spawn_request import descriptors_for, make_pipes, spawn_request
from cove.runtime.tree_kill import TreeKill
from cove.tasks import Tasks

# A launcher answers within a millisecond. Later it is most likely held up by what it starts.
_WAKE_SECONDS = 0.5


class Supervised:
    """A running process. Invariant: the launcher is ours until its tree is empty or it is gone."""

    def __init__(
        self,
        take: Take,
        *,
        pool: LauncherPool,
        background: Tasks,
        on_fault: Callable[[str], None],
        memory_kills: MemoryKills | None = None,
    ) -> None:
        self._memory_kills = memory_kills
        self._is_asking = False
        self._program = self._cwd = b""
        self.output = ProcessOutput(take)
        self._pool = pool
        self._background = background
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self.clock = pool.clock
        self._launcher: Parent | None = None
        self._main_exit: ProcessExit | None = None
        self._is_tree_empty = False
        self._ending: Outcome | None = None
        self._sent: set[int] = set()
        self._kill = TreeKill(self._kill_tree, self.clock, background)
        self._deadline: ClockTimer | None = None
        self._start_timer: ClockTimer | None = None
        self.pid = 0
        self.never_started = False
        self.stdout_link = ""
        self.refusal = ""
        self._is_stopped = False
        self._on_stopped: Callable[[], None] = lambda: None
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[ProcessExit] = self._loop.create_future()

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._pool.gate

    def start(
        self,
        launcher: Launcher,
        invocation: Invocation,
        *,
        stdin: int | None = None,
        tty: bytes = b"",
        extra: Mapping[int, int] = {},
    ) -> None:
        """Send the spawn request. Raises OSError if the launcher is gone; then nothing was started.

        With a terminal the process gets that for its streams, and whoever has the other end takes the output.
        """
        with ExitStack() as given, ExitStack() as kept:
            try:
                pipes = {} if tty else make_pipes(kept, given)
                descriptors = descriptors_for(invocation, pipes, stdin, extra, given)
                launcher.spawn(spawn_request(invocation, list(descriptors), tty), list(descriptors.values()))
            except OSError:
                launcher.close()
                self._pool.release(launcher)
                raise
            kept.pop_all()
        self._launcher = Lease(launcher, self._pool)
        self._program, self._cwd = invocation.argv[0], invocation.cwd
        launcher.tenant = self
        self.output.take_from(pipes)
        if pipes:
            self.stdout_link = f"pipe:[{os.fstat(pipes[STDOUT][0]).st_ino}]"

    def join_family(self) -> Family:
        """Share the launcher from now on with copies of this process."""
        assert self._launcher is not None, "it has ended"
        if isinstance(self._launcher, Member):
            return self._launcher.family
        assert isinstance(self._launcher, Lease)
        family = Family(self._launcher, self._background)
        self._launcher = family.add(SPAWNED, self)
        return family

    def open_streams(self, given: ExitStack) -> list[int]:
        """Make the pipes of a copy that is about to be forked; their other ends are closed with `given`."""
        with ExitStack() as kept:
            pipes = make_pipes(kept, given)
            kept.pop_all()
        self.output.take_from(pipes)
        return [write for _, write in pipes.values()]

    def begin_as_copy(self, family: Family, label: bytes, pid: int) -> None:
        """Supervise a copy that its launcher has adopted."""
        self._launcher = family.add(label, self)
        self.pid = pid
        self._set_started()

    def discard(self) -> None:
        """Free the pipes of a copy that does not exist."""
        self.output.finish(self._launcher)

    def set_deadline(self, time: float, grace: float) -> None:
        """End the tree at that time of the jail's clock. What has not even started gets no grace."""
        if not self.ended.done():
            self._deadline = self.clock.call_at(time, self._time_out, grace)

    def _time_out(self, grace: float) -> None:
        self.end(Outcome.TIMED_OUT, grace if self.started.done() else 0)

    def expect_start(self, until: float) -> None:
        """Kill a launcher that has not answered until then. Before, wake what code inside may have stopped."""
        now = self.clock.time()
        if self.started.done() or self._launcher is None:
            return
        if now >= until:
            self.end(Outcome.KILLED, 0)
        else:
            self._start_timer = self.clock.call_at(min(now + _WAKE_SECONDS, until), self._wake, until)

    def _wake(self, until: float) -> None:
        if self._launcher is not None:
            self._background.start(self._launcher.wake())
        self.expect_start(until)

    def when_stopped(self, call: Callable[[], None]) -> None:
        """Call this, once, when the process is stopped by a signal; at once if it has been."""
        self._on_stopped = call
        if self._is_stopped:
            call()

    def end_if_stopped(self) -> None:
        """A process of ours that is stopped never answers again: end it."""
        self.when_stopped(partial(self.end, Outcome.KILLED, 0))

    @property
    def ending(self) -> Outcome | None:
        """The reason why it is being ended, or was; None when nobody has ended it."""
        return self._ending

    def signal(self, number: int) -> None:
        """Signal the whole tree. Signalling a process that has ended is a no-op."""
        if self.ended.done() or self._launcher is None:
            return
        if number == signals.SIGKILL:
            self.end(Outcome.KILLED, 0)
        else:
            self._sent.add(number)
            self._launcher.signal(number)

    @property
    def launcher(self) -> Parent | None:
        """The launcher, while anything of the tree may be left."""
        return self._launcher

    def end(self, outcome: Outcome, grace: float) -> None:
        """End the whole tree: TERM first if there is any grace, KILL after it."""
        if self.ended.done() or self._launcher is None:
            return
        if self._ending is None:
            self._ending = outcome
        if grace > 0:
            self._launcher.signal(signals.SIGTERM)
            self._kill.at(self.clock.time() + grace)
        else:
            self._kill.begin()

    async def sweep(self) -> None:
        """Kill whatever is left of the tree, also when the process itself has ended; returns when nothing is."""
        if self._ending is None:
            self._ending = Outcome.KILLED
        if self._launcher is not None and not self._background.closed:
            await asyncio.wait([self._kill.begin()])

    def explain(self, reason: str) -> None:
        """Say in its output what happens to it."""
        if not self.ended.done():
            self.output.explain(reason)

    def lose(self, outcome: Outcome) -> None:
        """The sandbox is gone, and the process with it."""
        self._is_asking = False
        self._launcher = None
        self.output.finish(self._launcher)
        self._main_exit = self._main_exit or exit_with_sandbox(outcome)
        self._is_tree_empty = True
        if not self.started.done():
            self.started.set_exception(self._pool.explain(True))
            self.started.exception()
        self._complete()

    def launcher_said(self, fields: list[bytes]) -> None:
        """Handle a message of the launcher (`agent.protocol`): started, refused, exit, empty."""
        match fields:
            case [b"started", pid] if not self.started.done():
                self.pid = number(pid)
                self._set_started()
            case [b"refused", step, code] if not self.started.done():
                self._refuse(step, number(code, MOST_ERRNO))
            case [b"exit", status, user, system, rss, empty] if self._main_exit is None and self.started.done():
                usage = (number(user) / 1e6, number(system) / 1e6, number(rss) * 1024)
                self._on_exit(check_wait_status(status), usage, is_empty=empty == b"1")
            case [b"stopped"] if self.started.done():
                self._stop()
            case [b"empty"] if self._main_exit is not None:
                self._on_empty()
            case _:
                raise ProtocolError(f"unexpected {fields[0][:20]!r}")

    def launcher_gone(self) -> None:
        """Handle the death of the launcher: init kills what it leaves, and the command died with it."""
        if self._main_exit is None:
            self.never_started = self._launcher is not None and self._launcher.never_read_spawn
            if self.never_started and self._ending is None:
                self._main_exit = ProcessExit(outcome=Outcome.LOST, exit_code=None)
            else:
                self._set_main_exit(signals.SIGKILL, None)
                self._ask_for_the_cause()
        self.output.finish(self._launcher)
        self._kill.begin()
        self._set_started()

    def _set_started(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        if not self.started.done():
            self.started.set_result(None)

    def _stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._on_stopped()

    def _refuse(self, step: bytes, code: int) -> None:
        self._main_exit, message = exit_by_refusal(step, code, program=self._program, cwd=self._cwd)
        self.output.take(STDERR, message)
        self.refusal = message.decode("utf-8", "replace").strip()
        self._set_started()
        self.output.finish(self._launcher)
        self._on_empty()

    def _on_exit(self, status: int, usage: Usage, *, is_empty: bool) -> None:
        self._set_main_exit(status, usage)
        if self._ending is None or is_empty:
            self.output.finish(self._launcher)
        self._ask_for_the_cause()
        if is_empty:
            self._on_empty()
        else:
            self._complete()

    def _ask_for_the_cause(self) -> None:
        """Ask whether it was the OOM killer. Only a control group knows, and that must not be asked on this loop."""
        end = self._main_exit
        if self._memory_kills is None or end is None or end.exit_code == 0:
            return
        if end.outcome in (Outcome.EXITED, Outcome.SIGNALED) and end.exit_code == KILLED_EXIT_CODE:
            self._is_asking = True
            self._background.start(self._find_cause(self._memory_kills, end), on_end=self._cause_found)
        else:
            self._background.start(self._memory_kills.look())

    async def _find_cause(self, kills: MemoryKills, end: ProcessExit) -> None:
        if await kills.was_one():
            self._main_exit = msgspec.structs.replace(end, outcome=Outcome.OUT_OF_MEMORY, signal=signals.SIGKILL)

    def _cause_found(self) -> None:
        self._is_asking = False
        self._complete()

    def _on_empty(self) -> None:
        """A launcher that is being killed is not handed to the next command: `_kill_tree` lets go of it."""
        if not self._kill.has_begun:
            self._release()

    def _set_main_exit(self, status: int, usage: Usage | None) -> None:
        self._main_exit = exit_by_status(status, usage, ending=self._ending, sent=self._sent)

    def _release(self) -> None:
        """The tree is empty: the launcher can serve someone else."""
        self._is_tree_empty = True
        self.output.finish(self._launcher)
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.release()
        self._complete()

    def _complete(self) -> None:
        if self._main_exit is None or self._is_asking or (self._ending is not None and not self._is_tree_empty):
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._is_tree_empty:
            self._kill.cancel()
        self._set_started()
        if not self.ended.done():
            self.ended.set_result(self._main_exit)

    async def _kill_tree(self) -> None:
        if self._launcher is not None:
            await self._end_launcher(self._launcher)

    async def _end_launcher(self, launcher: Parent) -> None:
        try:
            await launcher.end()
        except CoveError:
            return  # the sandbox is ending, and says so through `lose`
        if self._main_exit is None:
            self._set_main_exit(signals.SIGKILL, None)
        self._release()
