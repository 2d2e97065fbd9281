"""A living bash that runs one command after the other, and how a command is interrupted.

Theory of operation. `start` writes the command and tells the shell to go; the shell's report ends it. Exactly the
bytes then in the fifos belong to the command; a fifo that background jobs still hold is handed to the launcher, which
drains it, and replaced. If the shell itself ends, the command's future raises ShellEnded. Reports are untrusted, since
every process inside can write into the fifo: one with the wrong id is a fault, and ends the shell.

Interruption (a timeout, a cancelled caller) must end the command and everything it has started, must start nothing
more of the command's text, and must keep the shell with its variables. bash offers no call for that, only signals:

 1. Trap. The shell gets INTERRUPT_SIGNAL, whose handler (session.bash) sets a DEBUG trap that skips every further
    command, leaves loops and returns from functions, and reports that it runs. A command whose words are just being
    made (`rm $(find …)`) has passed that trap already: a failing PS4 and a limit of open files keep it from running.
    Nothing is killed before the report: a bash that sees its child die before it is trapped goes on to the next
    command, or to the next substitution of the same one.
 2. Ban. A bash that waits for a foreground process takes no trap before that process has ended. It may be in the
    middle of a command's words. So it is kept from forking (RLIMIT_NPROC is 0, set from outside by prlimit(2)) until
    its command is over: what it would start next fails, and in most cases there is nothing.
 3. Escalate. What the command has started gets INT, then TERM, then KILL, each with some time to go. "What the command
    has started" is decided by the launcher: by a label that processes inherit, or by their age. The launcher stops all
    of them first, so that they get the signal at the same moment.
 4. Left-overs. Background jobs ignore INT: they get TERM, then KILL, until none is left.
 5. Settle. An empty line of our own is run. When it is reported, a signal that came too late has been taken, and
    cannot hit the next command.

`interrupt` gives the last report, or None when the shell did not come back: then runtime/session_shell replaces it.

What can go wrong, and why it does not:

- The signal is lost: bash notes one that comes just before read(2), but is not woken by it. So it is sent again, more
  often where the shell reads from a substitution, since there each attempt can succeed.
- SIGINT would be the user's: a script may trap or ignore it. The signal is a real-time one that nobody uses.
- The shell is back at its loop and does not report (`set -n`, a DEBUG trap that skips everything). It is recognised by
  its standard output, which then is the one it was born with, and is killed. Looking is cheap and rare.
- The shell is stopped (SIGSTOP from inside): the launcher says so, and it is killed. It would never answer again.
- The shell gets no CPU time. A line that it has not read yet (FIONREAD) is waited for much longer than one it has.
- A process in uninterruptible sleep (a dead file server) cannot be killed: nobody waits for it beyond a bound.
- The caller is cancelled in the middle: the recovery is a task of the session, and the next call waits for it.
- The ban outlives the interruption: it is lifted in a `finally`, shielded, by a thread.
"""

import asyncio
import os
import signal

from cove.agent.protocol import ProtocolError
from cove.core.capture import Capture
from cove.core.session_script import CALM_SCRIPT, SNAPSHOT_SCRIPT
from cove.core.shell_exports import parse_exports
from cove.core.shell_protocol import INTERNAL, TRAPPED, Report, ReportDecoder
from cove.errors import CoveError, LimitExceeded
from cove.linux.fork_ban import ForkBan, ban_forks
from cove.local.threads import close_all, finished, in_thread
from cove.model import Outcome, ProcessExit
from cove.runtime.clock import ClockTimer
from cove.runtime.pump import Pump
from cove.runtime.shell_channel import ShellChannel
from cove.runtime.shell_command import ShellCommand, ShellEnded
from cove.runtime.shell_exports import MOST_EXPORT_BYTES, ShellExports
from cove.runtime.shell_output import ShellOutput
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised
from cove.tasks import owned, shared

INTERRUPT_SIGNAL = signal.SIGRTMAX - 7
# How long a command has to go after each of these, before the next is tried.
_ESCALATION = ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.3), (signal.SIGKILL, 0.3))
# How long a shell that runs takes to be trapped, and how often it is tried: where it can be woken, and where it waits.
_TRAP_SECONDS, _MOST_TRIES, _TRIES = 0.0125, 20, 3
# A shell at its loop reports within microseconds; these are for a busy machine.
_REPORT_SECONDS = 0.1
_FIRST_LOOK_SECONDS, _LOOK_SECONDS = 0.02, 0.4
# A shell that gets no time of the machine has not read yet; one whose fifo somebody has filled never will.
_STARVED_SECONDS = 60.0
_LEFTOVER_SECONDS, _HELD_SECONDS, _LOOK_AGAIN_SECONDS = 0.2, 5.0, 0.005
_INTERNAL_SECONDS = 5.0
# For a state of any size.
_SNAPSHOT_SECONDS = 60.0
_KILL_SECONDS = 1.0


class Shell:
    """Owns a bash process and its channel. One command at a time: the session sees to that."""

    def __init__(self, process: Supervised, channel: ShellChannel, spawner: Spawner, user: bytes = b"") -> None:
        self.process = process
        self._user = user
        self.channel = channel
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._clock = spawner.clock
        self._decoder = ReportDecoder()
        self._count = 0
        # By this the processes of the last command of the user are known: see session.bash.
        self._label = b""
        self._running: ShellCommand | None = None
        self.exports: asyncio.Future[bytes | None] | None = None
        self._exports = ShellExports(channel.exports, self._on_fault)
        self._output = ShellOutput(channel)
        self._snapshot: asyncio.Task[tuple[ShellSnapshot, Report]] | None = None
        self._look: ClockTimer | None = None
        self._seen: ShellCommand | None = None
        process.when_stopped(self._on_stopped)
        process.ended.add_done_callback(self._on_end)
        self._loop.add_reader(channel.done, self._on_report)

    @property
    def is_alive(self) -> bool:
        """Return whether commands can run."""
        return not self.process.ended.done()

    @property
    def is_busy(self) -> bool:
        """A command of the user has not ended."""
        return self._running is not None and not self._running.id.startswith(INTERNAL)

    def start(self, command: bytes, captures: tuple[Capture, Capture], stdin: bytes | None) -> ShellCommand:
        """Start one command."""
        if self.is_alive:
            self._output.begin(captures)
        running = self._go("", command, stdin)
        self._label = running.id.encode()
        return running

    async def run_internal(self, script: str) -> Report:
        """Run a line of our own that prints nothing and leaves `$?` alone. It takes microseconds, or never ends."""
        await self.settle()
        command = self._go(INTERNAL, script.encode("utf-8", "surrogateescape"), None)
        await self.settle()
        return command.report()

    async def settle(self) -> None:
        """Wait for a line of our own that a cancelled caller has left running."""
        running = self._running
        if running is None or await running.wait(_INTERNAL_SECONDS + running.reading_seconds):
            return
        # One that has not even read it may have many variables to tell of.
        if self.channel.has_been_read or not await running.wait(_STARVED_SECONDS):
            await self.kill()

    async def environment(self, exports: "asyncio.Future[bytes | None]") -> dict[str, str]:
        """The exported variables after a command. They follow its report within microseconds."""
        self._exports.watch()
        text = await shared(exports)
        if text is None:
            raise LimitExceeded(
                f"the exported variables are over {MOST_EXPORT_BYTES >> 20} MiB, or there are so many variables that "
                "bash takes seconds to list them: unset some"
            )
        parsing = parse_exports(text)
        while True:
            try:
                next(parsing)
            except StopIteration as done:
                environment: dict[str, str] = done.value
                return environment
            await asyncio.sleep(0)

    async def snapshot(self) -> tuple[ShellSnapshot, Report]:
        """The shell's whole state, which the caller closes. What it says is read to its end in any case.

        Raises StateTooLarge, or ShellEnded.
        """
        while self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        self._snapshot = owned(self._take_snapshot())
        self._snapshot.add_done_callback(self._snapshot_taken)
        task = self._snapshot
        try:
            return await shared(task)
        except asyncio.CancelledError:
            task.add_done_callback(_discard)
            raise

    def _snapshot_taken(self, task: "asyncio.Task[tuple[ShellSnapshot, Report]]") -> None:
        self._snapshot = None

    async def _take_snapshot(self) -> tuple[ShellSnapshot, Report]:
        snapshot = ShellSnapshot()
        collector = Pump(os.dup(self.channel.state), snapshot.append)
        try:
            await self.settle()
            command = self._go(INTERNAL, SNAPSHOT_SCRIPT.encode(), None)
            if not await command.wait(_SNAPSHOT_SECONDS):
                await self.kill()
            report = command.report()
            if (descriptor := collector.finish()) is not None:
                os.close(descriptor)
            snapshot.seal()
        except BaseException:
            snapshot.close()
            raise
        finally:
            collector.close()
        return snapshot, report

    async def interrupt(self, ticks: int) -> Report | None:
        """End the running command and what it started, keep the shell. None: it does not come back.

        bash takes the trap between commands, or when it is woken while it reads what it substitutes; then it executes
        nothing more. Where it does not, because it waits for a process, it may be in the middle of the words of a
        command, and would go on to the next substitution when that process is ended: it is kept from starting any.
        """
        command = self._running
        ban = None if command is None or await self._is_trapped(command, ticks) else await self._ban_forks()
        try:
            await self._end_command(command, ticks)
        finally:
            if ban is not None:
                await finished(ban.lift)
        if not self.is_alive or self._running is not None:
            return None
        # A signal that came too late must not hit the next command.
        return await self.run_internal(CALM_SCRIPT)

    async def _is_trapped(self, command: ShellCommand, ticks: int) -> bool:
        """Interrupt the shell, more than once: a signal that comes just before it begins to wait does not wake it."""
        await self._signal(INTERRUPT_SIGNAL, b"main")
        tries = _MOST_TRIES if await self._signal(0, b"feeding", ticks) else _TRIES
        for _ in range(tries):
            if command.is_interrupted or await command.wait(_TRAP_SECONDS) or command.is_interrupted:
                return True
            await self._signal(INTERRUPT_SIGNAL, b"main")
        return False

    async def _end_command(self, command: ShellCommand | None, ticks: int) -> None:
        for number, seconds in _ESCALATION:
            await self._signal(number, b"new", ticks)
            if command is None or await self._is_over(command, seconds):
                break
            await self._signal(INTERRUPT_SIGNAL, b"main")
        await self.end_leftovers(ticks)

    async def _is_over(self, command: ShellCommand, seconds: float) -> bool:
        until = self._clock.time() + seconds
        while not command.is_over and (left := until - self._clock.time()) > 0:
            await command.wait(left)
        return command.is_over

    async def _ban_forks(self) -> ForkBan | None:
        launcher = self.process.launcher
        if launcher is None or not launcher.host_pid.done() or launcher.host_pid.exception() is not None:
            return None
        return await in_thread(ban_forks, launcher.host_pid.result(), self.process.pid, self.channel.ban_user)

    async def end_leftovers(self, ticks: int) -> None:
        """Background jobs ignore INT: bash(1), signals. Those of this command get TERM, and KILL if they do not go.

        What the kernel itself holds (a dead file server) goes when that lets it: nobody waits for it here.
        """
        began = self._clock.time()
        number = int(signal.SIGTERM)
        while await self._signal(number, b"new", ticks) and self._clock.time() < began + _HELD_SECONDS:
            await self._clock.wait([self.process.ended], _LOOK_AGAIN_SECONDS)
            number = signal.SIGKILL if self._clock.time() > began + _LEFTOVER_SECONDS else 0

    async def _signal(self, number: int, scope: bytes, ticks: int = 0) -> int:
        launcher = self.process.launcher
        return 0 if launcher is None else await launcher.signal(number, scope, self._label, ticks)

    async def kill(self) -> None:
        """End the shell alone; its background jobs live on."""
        launcher = self.process.launcher
        if launcher is not None and self.is_alive:
            launcher.signal(signal.SIGKILL, b"main")
            await self._clock.wait([self.process.ended], _KILL_SECONDS)
            if self.is_alive:
                self.process.end(Outcome.KILLED, 0)
                await asyncio.wait([self.process.ended])

    def close(self) -> None:
        """Free the channel of a shell that has ended. Idempotent."""
        if self.channel.closed:
            return
        if self._look is not None:
            self._look.cancel()
        self._output.close()
        self._exports.close()
        self._loop.remove_reader(self.channel.done)
        self.channel.close()

    def _go(self, prefix: str, command: bytes, stdin: bytes | None) -> ShellCommand:
        self._count += 1
        running = ShellCommand(f"{prefix}{self._count}", self._clock, len(command))
        if not self.is_alive:
            running.end(ShellEnded(self.process.ended.result()))
            return running
        self._running = running
        try:
            self.channel.send(running.id, command, stdin)
        except BlockingIOError:
            self._spawner.background.start(self.kill())
        if self._look is None:
            self._look = self._clock.call_later(_FIRST_LOOK_SECONDS, self._on_look)
        return running

    def _finish_output(self) -> None:
        held = self._output.finish()
        if held:
            self._spawner.background.start(in_thread(self.channel.remove_output, self.channel.pair - 1))
        launcher = self.process.launcher
        if held and launcher is not None and not launcher.closed:
            launcher.drain(held)
        else:
            close_all(held)

    def _on_report(self) -> None:
        try:
            for report in self._decoder.feed(os.read(self.channel.done, 65536)):
                self._take_report(report)
        except BlockingIOError:
            return
        except ProtocolError:
            self._on_fault()

    def _on_fault(self) -> None:
        """Kill a shell that has broken the protocol: whatever else it says cannot be believed."""
        self._loop.remove_reader(self.channel.done)
        self._spawner.background.start(self.kill())

    def _take_report(self, report: Report) -> None:
        running = self._running
        if report.id.startswith(TRAPPED):
            if running is not None and report.id == f"{TRAPPED}{running.id}":
                running.interrupt()
            return
        if running is None or report.id != running.id:
            raise ProtocolError("a report that nobody waits for")
        self._finish_output()
        self._running = None
        running.end(report)
        self.exports = self._exports.expect()

    def _on_end(self, ended: "asyncio.Future[ProcessExit]") -> None:
        self._finish_output()
        gone = ShellEnded(ended.result())
        running, self._running = self._running, None
        if running is not None:
            running.end(gone)
        self._exports.fail(gone)

    def _on_stopped(self) -> None:
        """A stopped shell never answers again by itself."""
        self._spawner.background.start(self.kill())

    def _on_look(self) -> None:
        """Now and then, while commands run: the same one as the last time may be one that never reports."""
        self._look = None
        if self._running is not None:
            # Its exports of before may be more than its fifo holds.
            self._exports.watch()
            if self._running is self._seen:
                self._spawner.background.start(self._look_at_shell(self._running))
            self._seen = self._running
            self._look = self._clock.call_later(_LOOK_SECONDS, self._on_look)

    async def _look_at_shell(self, running: ShellCommand) -> None:
        """Twice at its loop without a report in between: it will never report, unless it has not even begun."""
        seconds = running.reading_seconds if self.channel.has_been_read else _STARVED_SECONDS
        if self._clock.time() < running.since + seconds:
            return
        for _ in range(2):
            if not await self._is_at_loop() or self._running is not running:
                return
            await self._clock.wait([self.process.ended], _REPORT_SECONDS)
        if self._running is running:
            await self.kill()

    async def _is_at_loop(self) -> bool:
        path = b"/proc/%d/fd/1" % self.process.pid
        try:
            link = self._spawner.link
            answer = await link.request(b"readlink", path, expect_fields=1, subject="the shell", user=self._user)
        except CoveError:
            return False
        return answer.fields[0].decode("utf-8", "replace") == self.process.stdout_link


def _discard(task: "asyncio.Task[tuple[ShellSnapshot, Report]]") -> None:
    """Close a snapshot whose caller is gone."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].close()
