"""The launcher, parent of one command: spawns it, reaps all that descends from it, reports how it ended.

Theory of operation. A launcher is forked by init before it is needed and waits for `spawn` on a socket of its own. It
has its own control group where there are any, which the runtime has put it into. It starts the command by
posix_spawn(3) (agent/spawn; vfork inside: its cost does not grow with our memory), with the descriptors that came in
the packet. It is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): a process of the command's tree that is orphaned, or
calls setsid or double-forks into a daemon, becomes a child of the launcher and never of init. So "the tree of this
command" is exactly "what is below this launcher", with control groups or without.

One loop. A packet from the runtime: spawn, signal, drain. A byte in the wake-up pipe, which the C-level
signal handler writes at SIGCHLD: reap. A pipe that left-over children hold: read it and throw it away, so that they
do not block on a full pipe, and get no SIGPIPE.

It tells the runtime, in this order: `ready` once; then for each command `started` or `refused`, perhaps `stopped`,
`exit` with status and resource usage, and `empty` when nothing of the tree is left (or `exit` says that itself). After
that it is parked again, and can be used for the next command.

Signals go to one of these scopes: `main` (the spawned process), `tree` (everything below), `new` (what a session's
command has started, known by its label or its age), `feeding` (those of `new` that print into a pipe main reads).

What can go wrong, and why it does not:

- A zombie that nobody reaps: wait4(-1) runs until there is nothing to reap, at every SIGCHLD. SIGCHLD is not queued,
  but the loop does not count them.
- The exit of the command is reaped together with left-overs: `exit` is sent once, after the loop, and says whether the
  tree is empty at that moment. So `empty` never comes before `exit`.
- A tree that forks while it is signalled. `pursue` looks again for processes that the signal has missed, until all that
  it ends has ended, for a second at most. What a process forks that handles the signal is left alone. SIGKILL does not
  go this way: the runtime kills by control group and has init sweep, which nothing escapes.
- A subshell sees its program die and starts the next one before it is told to end: `interrupt` stops all of them first,
  signals all, then continues all.
- A bash whose command substitution dies of SIGINT sends itself SIGINT, and dies. What feeds main gets TERM, and first.
- Pids are reused. A child of ours keeps its pid until `reap` has run, in this thread. A process further down may be
  reaped by its parent between a look and a signal. Pids go round, so for a wrong hit all of them would have to be used
  in that moment; and it would hit a process of the same sandbox.
- Code inside has the same user and can kill or stop a launcher. All other signals are blocked. Killed: init adopts the
  tree and kills it, and the runtime sees the closed socket. Stopped: init notices (WUNTRACED) and kills it.
- Code inside can stop the child between vfork and execve(2), and posix_spawn waits for that: the runtime asks init to
  continue what is below the launcher (`wake`).
- Descriptors leak into the command: all are close-on-exec, targets are dup2'ed, sources moved out of their way.
- The runtime is gone: the socket closes, the launcher kills what is below it and exits.
- Whatever the launcher says is untrusted outside: anything inside could be speaking in its name.
"""

from __future__ import annotations

import _signal
import errno
import posix
import select
import time

from cove.agent import kernel, protocol, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import resource

    from cove.agent import sudo

DRAIN_BYTES = 65536
PURSUIT_SECONDS = 1.0
HOLD_SECONDS = 0.1

# Unless a process handles them, nothing ends by these: signal(7).
ENDS_NOTHING = (
    _signal.SIGCHLD,
    _signal.SIGCONT,
    _signal.SIGURG,
    _signal.SIGWINCH,
    _signal.SIGSTOP,
    _signal.SIGTSTP,
    _signal.SIGTTIN,
    _signal.SIGTTOU,
)


class Launcher:
    """Serves one socket; `main` is the spawned process while it runs, `busy` while its tree lives."""

    def __init__(self, sock: _socket.socket, wakeup: int) -> None:
        self.sock = sock
        self.wakeup = wakeup
        self.main = 0
        self.busy = False
        self.user = b""
        self.sudo_user = -1
        self.door: sudo.Door | None = None
        self.draining: set[int] = set()
        self.poll = select.poll()
        self.poll.register(sock.fileno(), select.POLLIN)
        self.poll.register(wakeup, select.POLLIN)

    def serve(self) -> None:
        self.send(b"ready")
        control = self.sock.fileno()
        while True:
            for fd, _events in self.poll.poll():
                if fd == control:
                    if not self.receive():
                        return
                elif fd == self.wakeup:
                    posix.read(self.wakeup, 4096)
                    self.reap()
                elif self.door is not None and fd == self.door.listener.fileno():
                    self.door.start_broker()
                else:
                    self.drain(fd)

    def send(self, *fields: bytes) -> None:
        try:
            kernel.send(self.sock, protocol.encode(*fields))
        except OSError:
            posix._exit(0)  # the runtime is gone

    def receive(self) -> bool:
        packet, descriptors = kernel.receive(self.sock, protocol.LIMIT, protocol.MAX_DESCRIPTORS)
        if not packet:
            return False
        if packet == protocol.LARGE:
            packet = kernel.read_all(descriptors[-1])
            posix.close(descriptors.pop())
        verb, _, rest = packet.partition(b"\0")
        if verb == b"spawn":
            self.spawn(rest.split(b"\0"), descriptors)
        elif verb == b"signal":
            sent, scope, label, ticks = rest.split(b"\0")
            number = int(sent)
            if scope == b"new":
                chosen = self.interrupt(number, label, int(ticks))
            elif scope == b"feeding":
                chosen = self.find_feeding(label, int(ticks))
            else:
                chosen = self.choose(scope, label)
                self.signal(chosen, number)
            if scope == b"tree" and number not in ENDS_NOTHING:
                chosen = self.pursue(chosen, number)
            self.send(b"signaled", protocol.encode_number(len(chosen)))
        elif verb == b"drain":
            for fd in descriptors:
                self.draining.add(fd)
                self.poll.register(fd, select.POLLIN)
        else:
            self.obey(verb, rest)
        return True

    def obey(self, verb: bytes, rest: bytes) -> None:
        """Do what only a fork server's launchers are told: executor/fork_launcher."""
        raise protocol.ProtocolError("unknown verb")

    def choose(self, scope: bytes, label: bytes) -> list[int]:
        if scope == b"main":
            return [self.main] if self.main else []
        return list(kernel.descendants(posix.getpid()))

    def interrupt(self, number: int, label: bytes, ticks: int) -> list[int]:
        """Signal what a shell's command has started, all of it at the same time.

        One after the other, a subshell would see its program die and go on before it is told to end itself.
        """
        chosen = self.find_labelled(label, ticks)
        until = time.monotonic() + HOLD_SECONDS
        held: set[int] = set()
        while number and not held.issuperset(chosen) and time.monotonic() < until:
            kernel.signal_all([pid for pid in chosen if pid not in held], _signal.SIGSTOP)
            held.update(chosen)
            chosen = self.find_labelled(label, ticks)
        self.signal(chosen, number)
        kernel.signal_all(held, _signal.SIGCONT)
        return chosen

    def find_feeding(self, label: bytes, ticks: int) -> list[int]:
        """Find what prints into a pipe that main reads; only its own user can look at that: proc(5)."""
        found = self.find_labelled(label, ticks)
        try:
            if self.user:
                kernel.become(self.user)
            return [pid for pid in found if kernel.feeds(pid, self.main)]
        finally:
            if self.user:
                kernel.return_to_root()

    def find_labelled(self, label: bytes, ticks: int) -> list[int]:
        """Find what a shell's command has started: by its label, or by its age where it has lost that."""
        found = []
        for pid in kernel.descendants(posix.getpid()):
            own = kernel.label(pid)
            if (
                pid != self.main
                and (own == label or (not own and kernel.lives_since(pid, ticks)))
                and kernel.lives(pid)
            ):
                found.append(pid)
        return found

    def signal(self, chosen: list[int], number: int) -> None:
        """Send a signal; instead of INT, what the spawned process reads from gets TERM, and gets it first.

        A bash whose command substitution dies of INT sends INT to itself.
        """
        if number == _signal.SIGINT:
            feeding = [pid for pid in chosen if pid != self.main and kernel.feeds(pid, self.main)]
            kernel.signal_all(feeding, _signal.SIGTERM)
            chosen = [pid for pid in chosen if pid not in feeding]
        kernel.signal_all(chosen, number)

    def pursue(self, reached: list[int], number: int) -> list[int]:
        """Send a signal to what was forked while the tree got it, until all that it ends has ended.

        What a process forks that handles the signal is left alone: it may be its way to tidy up.
        """
        own = posix.getpid()
        known = set(reached)
        until = time.monotonic() + PURSUIT_SECONDS
        ending = True
        while ending and time.monotonic() < until:
            ending = kernel.ENDS in [kernel.answer(pid, number) for pid in known]
            missed = []
            for pid, parent in kernel.descendants(own).items():
                if pid not in known and (parent == own or kernel.answer(parent, number) != kernel.LIVES_ON):
                    missed.append(pid)
            self.signal(missed, number)
            known.update(missed)
            ending = ending or bool(missed)
        return list(known)

    def spawn(self, fields: list[bytes], descriptors: list[int]) -> None:
        cwd, targets, tty, self.user, argc = fields[:5]
        argv = fields[5 : 5 + int(argc)]
        environ = dict([entry.split(b"=", 1) for entry in fields[5 + int(argc) :]])
        step = b"state"
        try:
            numbers = spawn.restore_states(targets.split(b","), descriptors) if targets else []
            step = b"cwd"
            self.open_door()
            if self.user:
                kernel.become(self.user)
            posix.chdir(cwd)
            step = b"program"
            self.main = self.start(argv, environ, numbers, descriptors, tty)
            self.busy = True
        except OSError as error:
            self.close_door()
            self.send(b"refused", step, protocol.encode_number(error.errno or errno.EIO))
        else:
            self.send(b"started", protocol.encode_number(self.main))
        finally:
            if self.user:
                kernel.return_to_root()
            posix.chdir("/")
            for fd in descriptors:
                posix.close(fd)

    def open_door(self) -> None:
        """Have a socket that `sudo` can ask at, if the command is of the user who has it."""
        if self.sudo_user >= 0 and self.user.startswith(b"%d:" % self.sudo_user):
            from cove.agent import sudo

            self.door = sudo.Door(self.sudo_user, self.poll)

    def close_door(self) -> None:
        if self.door is not None:
            if posix.geteuid():
                kernel.return_to_root()
            self.door.close()
            self.door = None

    def start(
        self, argv: list[bytes], environ: dict[bytes, bytes], targets: list[int], descriptors: list[int], tty: bytes
    ) -> int:
        """Return the pid of the new process, which has the descriptors under the numbers of the targets."""
        return spawn.start(argv, environ, spawn.file_actions(targets, descriptors, tty))

    def reap(self) -> None:
        ended = None
        empty = False
        while True:
            try:
                pid, status, usage = posix.wait4(-1, posix.WNOHANG | posix.WUNTRACED)
            except ChildProcessError:
                empty = True
                break
            if not pid:
                break
            if self.door is not None and pid == self.door.broker:
                self.door.lose_broker(status)
            elif pid != self.main:
                self.reaped(pid, status, usage)
            elif posix.WIFSTOPPED(status):
                self.send(b"stopped")
            else:
                ended = (status, usage)
                self.close_door()
        if ended is not None:
            self.main = 0
            self.report(ended[0], ended[1], empty)
        elif empty and self.busy and not self.main:
            self.send(b"empty")
        if empty and not self.main:
            self.busy = False

    def reaped(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        """Take note of a child that is not the spawned process: it has ended, or was stopped."""

    def report(self, status: int, usage: resource.struct_rusage, empty: bool, *whose: bytes) -> None:
        self.send(
            *whose,
            b"exit",
            protocol.encode_number(status),
            b"%d" % (usage.ru_utime * 1e6),
            b"%d" % (usage.ru_stime * 1e6),
            protocol.encode_number(usage.ru_maxrss),
            b"1" if empty else b"0",
        )

    def drain(self, fd: int) -> None:
        try:
            ended = not posix.read(fd, DRAIN_BYTES)
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if ended:
            self.poll.unregister(fd)
            self.draining.discard(fd)
            posix.close(fd)


def block_everything() -> None:
    """Block all signals but SIGCHLD. The spawned program starts with none blocked and all at default."""
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - {_signal.SIGCHLD})


def ignore(number: int, frame: object) -> None:
    """Do nothing in the signal handler: set_wakeup_fd has already told the loop."""


def run(launcher: Launcher) -> None:
    """Run a launcher, from fork to exit."""
    block_everything()
    launcher.serve()
    # Nobody else would do it where init cannot any more, because it was killed.
    kernel.signal_all(kernel.descendants(posix.getpid()), _signal.SIGKILL)
