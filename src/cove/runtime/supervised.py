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

Killing is one task however often it is asked for (`_kill`). It belongs to the sandbox's background tasks, not to the
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import msgspec

from cove.agent.protocol import MOST_ERRNO, MOST_WAIT_STATUS, ProtocolError, encode, number
from cove.core.command import STATE_DESCRIPTOR, Invocation
from cove.core.output_log import STDERR, STDOUT
from cove.errors import CoveError
from cove.linux.descriptors import sealed_file
from cove.model import Outcome, ProcessExit
from cove.runtime.clock import ClockTimer
from cove.runtime.family import SPAWNED, Family, Lease, Member, Parent
from cove.runtime.gate import Gate
from cove.runtime.launcher import Launcher, LauncherPool
from cove.runtime.memory_kills import MemoryKills
from cove.runtime.pump import Pump
from cove.tasks import Tasks

TIMEOUT_EXIT_CODE = 124
CWD_EXIT_CODE = 1
KILLED_EXIT_CODE = 128 + signals.SIGKILL
NOT_EXECUTABLE_EXIT_CODE = 126
NOT_FOUND_EXIT_CODE = 127
# A launcher answers within a millisecond. Later it is most likely held up by what it starts.
_WAKE_SECONDS = 0.5

Take = Callable[[int, bytes], None]


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
        self._take = take
        self._pool = pool
        self._background = background
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self.clock = pool.clock
        self._launcher: Parent | None = None
        self._pumps: list[Pump] = []
        self._main_exit: ProcessExit | None = None
        self._is_tree_empty = False
        self._ending: Outcome | None = None
        self._sent: set[int] = set()
        self._killed: asyncio.Future[None] | None = None
        self._kill_timer: ClockTimer | None = None
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
                descriptors = {} if stdin is None else {0: stdin}
                pipes = {} if tty else {stream: _make_pipe(kept, given) for stream in (STDOUT, STDERR)}
                descriptors |= {stream + 1: write for stream, (_, write) in pipes.items()}
                descriptors |= extra
                for number, content in invocation.files.items():
                    descriptors[number] = given.enter_context(sealed_file(content)).fileno()
                if invocation.snapshot is not None:
                    descriptors[STATE_DESCRIPTOR] = invocation.snapshot
                launcher.spawn(spawn_request(invocation, list(descriptors), tty), list(descriptors.values()))
            except OSError:
                launcher.close()
                self._pool.release(launcher)
                raise
            kept.pop_all()
        self._launcher = Lease(launcher, self._pool)
        self._program, self._cwd = invocation.argv[0], invocation.cwd
        launcher.tenant = self
        self._take_from({stream: read for stream, (read, _) in pipes.items()})
        if pipes:
            self.stdout_link = f"pipe:[{os.fstat(pipes[STDOUT][0]).st_ino}]"

    def _take_from(self, pipes: Mapping[int, int]) -> None:
        for stream, read in pipes.items():
            os.set_blocking(read, False)
            self._pumps.append(Pump(read, partial(self._take, stream)))

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
            pipes = {stream: _make_pipe(kept, given) for stream in (STDOUT, STDERR)}
            kept.pop_all()
        self._take_from({stream: read for stream, (read, _) in pipes.items()})
        return [write for _, write in pipes.values()]

    def begin_as_copy(self, family: Family, label: bytes, pid: int) -> None:
        """Supervise a copy that its launcher has adopted."""
        self._launcher = family.add(label, self)
        self.pid = pid
        self._set_started()

    def discard(self) -> None:
        """Free the pipes of a copy that does not exist."""
        self._finish_output()

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

    def take_waiting(self) -> None:
        """Take everything that is printed and not yet taken."""
        for pump in self._pumps:
            if pump.is_open:
                pump.take_waiting()

    def pause(self) -> None:
        """Take no more output for now."""
        for pump in self._pumps:
            pump.pause()

    def resume(self) -> None:
        """Take output again."""
        for pump in self._pumps:
            pump.resume()

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
            self._kill_at(self.clock.time() + grace)
        else:
            self._kill()

    async def sweep(self) -> None:
        """Kill whatever is left of the tree, also when the process itself has ended; returns when nothing is."""
        if self._ending is None:
            self._ending = Outcome.KILLED
        if self._launcher is not None and not self._background.closed:
            await asyncio.wait([self._kill()])

    def explain(self, reason: str) -> None:
        """Say in its output what happens to it."""
        if self._pumps and not self.ended.done():
            self._take(STDERR, f"cove: {reason}\n".encode())

    def lose(self, outcome: Outcome) -> None:
        """The sandbox is gone, and the process with it."""
        self._is_asking = False
        self._launcher = None
        self._finish_output()
        code = None if outcome is Outcome.LOST else 128 + signals.SIGKILL
        self._main_exit = self._main_exit or ProcessExit(
            outcome=outcome, exit_code=code, signal=None if code is None else signals.SIGKILL
        )
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
                self._on_exit(_check_status(status), usage, is_empty=empty == b"1")
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
        self._finish_output()
        self._kill()
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
        reason = os.strerror(code)
        if step == b"cwd":
            exit_code = CWD_EXIT_CODE
            message = b"cove: cannot enter directory " + self._cwd + b": " + reason.encode() + b"\n"
        elif step == b"state":
            exit_code = NOT_EXECUTABLE_EXIT_CODE
            message = b"cove: the state of the session cannot be restored: " + reason.encode() + b"\n"
        else:
            is_missing = code in (2, 20)
            exit_code = NOT_FOUND_EXIT_CODE if is_missing else NOT_EXECUTABLE_EXIT_CODE
            reason = "command not found" if is_missing else reason
            message = b"cove: " + self._program + b": " + reason.encode() + b"\n"
        self._take(STDERR, message)
        self.refusal = message.decode("utf-8", "replace").strip()
        self._main_exit = ProcessExit(outcome=Outcome.EXITED, exit_code=exit_code)
        self._set_started()
        self._finish_output()
        self._on_empty()

    def _on_exit(self, status: int, usage: tuple[float, float, int], *, is_empty: bool) -> None:
        self._set_main_exit(status, usage)
        if self._ending is None or is_empty:
            self._finish_output()
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
        if self._killed is None:
            self._release()

    def _set_main_exit(self, status: int, usage: tuple[float, float, int] | None) -> None:
        code = os.waitstatus_to_exitcode(status)
        user, system, rss = usage or (None, None, None)
        outcome = Outcome.EXITED if code >= 0 else Outcome.SIGNALED
        if self._ending is Outcome.TIMED_OUT:
            outcome = Outcome.TIMED_OUT
        elif code < 0 and (-code in self._sent or self._ending is not None):
            outcome = self._ending or Outcome.KILLED
        self._main_exit = ProcessExit(
            outcome=outcome,
            exit_code=TIMEOUT_EXIT_CODE if outcome is Outcome.TIMED_OUT else code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            user_seconds=user,
            system_seconds=system,
            max_rss_bytes=rss,
        )

    def _finish_output(self) -> None:
        held = [descriptor for pump in self._pumps if (descriptor := pump.finish()) is not None]
        self._pumps = []
        if held and self._launcher is not None and not self._launcher.closed:
            self._launcher.drain(held)
        else:
            for descriptor in held:
                os.close(descriptor)

    def _release(self) -> None:
        """The tree is empty: the launcher can serve someone else."""
        self._is_tree_empty = True
        self._finish_output()
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.release()
        self._complete()

    def _complete(self) -> None:
        if self._main_exit is None or self._is_asking or (self._ending is not None and not self._is_tree_empty):
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._kill_timer is not None and self._is_tree_empty:
            self._kill_timer.cancel()
        self._set_started()
        if not self.ended.done():
            self.ended.set_result(self._main_exit)

    def _kill_at(self, time: float) -> None:
        """Of several ends under way the earliest counts."""
        if self._kill_timer is not None and self._kill_timer.when() > time:
            self._kill_timer.cancel()
            self._kill_timer = None
        if self._kill_timer is None:
            self._kill_timer = self.clock.call_at(time, self._kill)

    def _kill(self) -> "asyncio.Future[None]":
        """Begin to kill the tree, once; the future is done when nothing of it is left, or the sandbox ends."""
        if self._killed is None:
            self._killed = self._loop.create_future()
            # Not by the work itself: it may be cancelled before its first step.
            self._background.start(self._kill_tree(), on_end=partial(self._killed.set_result, None))
        return self._killed

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


def _check_status(field: bytes) -> int:
    """The wait status of a process that has ended: wait(2)."""
    status = number(field, MOST_WAIT_STATUS)
    if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
        raise ProtocolError(f"wait status {status} is not an end")
    return status


def _make_pipe(kept: ExitStack, given: ExitStack) -> tuple[int, int]:
    """A pipe whose write end is closed here once it is given away."""
    read, write = os.pipe2(os.O_CLOEXEC)
    kept.callback(os.close, read)
    given.callback(os.close, write)
    # The sandbox's user is not the one who made the pipe, and yet `> /dev/stderr` opens it: proc(5).
    os.fchmod(write, 0o666)
    return read, write


def spawn_request(invocation: Invocation, targets: Sequence[int], tty: bytes = b"") -> bytes:
    """The spawn packet: see `agent.protocol`."""
    return encode(
        b"spawn",
        invocation.cwd,
        b",".join(_target(invocation, number) for number in targets),
        tty,
        invocation.user,
        b"%d" % len(invocation.argv),
        *invocation.argv,
        *environment_entries(invocation.env),
    )


def _target(invocation: Invocation, number: int) -> bytes:
    is_snapshot = number == STATE_DESCRIPTOR and invocation.snapshot is not None
    return b"%d" % number + (invocation.snapshot_kind if is_snapshot else b"")


def environment_entries(env: Mapping[bytes, bytes]) -> list[bytes]:
    """NAME=value, as execve(2) takes them."""
    return [name + b"=" + value for name, value in env.items()]
