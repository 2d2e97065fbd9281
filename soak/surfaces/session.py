"""Shells whose state is known."""

import asyncio
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeAlias

from cove.api import Session
from cove.errors import SessionNotFound, SessionTerminated
from cove.model import ExecResult
from soak.hand import Answer, Hand, Step, Surface
from soak.model import ShellModel, check
from soak.possible import Possible, Violation

_MOST = 3
_DIRECTORIES = ("/", "/usr", "/tmp", "/workspace", "/home/user")
_PLAIN = ("v0", "v1", "v2")
_EXPORTED = ("E0", "E1")
_FUNCTION = "f0"
_NAMES = (*_PLAIN, *_EXPORTED)
_TEXTS = ("plain", "two  words", "qu'o\"te", "ünïcode", "$(no)", "line\nline")
_ENDLESS = ("while :; do :; done", "sleep 100", "cat /dev/zero | sleep 100", "(sleep 100)", "sleep 100 & wait")
_UNSET = "<unset>"


@dataclass
class _Known:
    """A session and the state of its shell."""

    session: Session
    shell: ShellModel
    may_have_ended: bool = False
    may_be_replaced: bool = False


class Sessions(Surface):
    """Created, changed, looked at, interrupted, ended in all ways."""

    weight = 2.0
    Saved: TypeAlias = list[tuple[Session, ShellModel]]

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._known: list[_Known] = []

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        some = 1.0 if self._known else 0.0
        return {
            self._create: 2 if len(self._known) < _MOST else 0,
            self._assign: 6 * some,
            self._define: 1 * some,
            self._change_directory: 2 * some,
            self._set_env: 2 * some,
            self._look: 4 * some,
            self._ask: 1 * some,
            self._for_one_call: 1 * some,
            self._queue: 1 * some,
            self._time_out: 1 * some,
            self._time_out_stubborn: 0.3 * some,
            self._start_process: 1 * some,
            self._exit: 0.2 * some,
            self._kill_shell: 0.2 * some,
            self._stop_shell: 0.2 * some,
            self._delete: 0.3 * some,
        }

    def forget(self) -> None:
        """See Surface."""
        self._known.clear()

    def restarted(self) -> None:
        """See Surface. Of one that may have ended nothing is known."""
        self._known = [known for known in self._known if not known.may_have_ended]

    def remember(self) -> "Sessions.Saved":
        """Those whose state is known for certain, as they are now."""
        return [
            (known.session, deepcopy(known.shell))
            for known in self._known
            if known.shell.is_certain and not known.may_have_ended and not known.may_be_replaced
        ]

    async def go_back(self, saved: "Sessions.Saved") -> None:
        """They are as they were then, and others are gone."""
        self._known = []
        for session, shell in saved:
            found = await self.hand.call("get-session", self.hand.sandbox.get_session(session.id), is_steady=True)
            if found.is_done:
                self._known.append(_Known(found.get(), deepcopy(shell)))

    def _any(self) -> _Known:
        return self.hand.random.choice(self._known)

    async def _create(self) -> None:
        cwd, id = self.hand.random.choice(_DIRECTORIES), self.hand.new_id("session")
        created = self.hand.sandbox.create_session(id=id, cwd=cwd, env={"E0": id})
        answer = await self.hand.call(f"create-session {id}", created)
        if answer.is_done:
            self._known.append(_Known(answer.get(), ShellModel(Possible(cwd), {"E0": Possible[str | None](id)})))

    async def _exec(
        self, known: _Known, command: str, *, is_steady: bool = False, **options: object
    ) -> Answer[ExecResult]:
        """A session that may have ended says so, and is then known to have."""
        call = known.session.exec(command, **options)  # type: ignore[arg-type]  # as each step says
        label = f"session-exec {known.session.id} {command[:70]!r}"
        allowed = (SessionTerminated,) if known.may_have_ended else ()
        answer = await self.hand.call(label, call, *allowed, is_steady=is_steady)
        if isinstance(answer.error, SessionTerminated) and known in self._known:
            self._known.remove(known)
        if answer.is_done:
            self._note_replacement(known, answer.get())
        else:
            known.shell.unanswered(command)
            known.may_be_replaced = True
        return answer

    def _note_replacement(self, known: _Known, *results: ExecResult) -> None:
        """The first result after a shell was replaced says so, whoever it was replaced for."""
        for result in results:
            if result.session_restarted:
                self.hand.subject.where.history.counts["shells-replaced"] += 1
                known.shell.restore(result.restored_command)
        known.may_be_replaced = False

    async def _change(self, known: _Known, command: str, name: str | None, value: str) -> None:
        """A command that changes one variable, or the directory: looked up afterwards, for the shell may be another."""
        command = f"{command} # {self.hand.number()}"
        may_be_another = known.may_be_replaced
        answer = await self._exec(known, command)
        shell = known.shell
        if answer.is_done:
            check(command, answer.get().ok, answer.value)
            (shell.cwd if name is None else shell.variable(name)).become(value)
            shell.completed(command)
            return
        (shell.cwd if name is None else shell.variable(name)).may_become(value)
        shell.disturbed()
        if may_be_another and name is None:
            shell.entered_since(value)
        elif may_be_another and name is not None:
            shell.set_since(name, value)

    async def _assign(self) -> None:
        known, name = self._any(), self.hand.random.choice(_PLAIN)
        value = f"{self.hand.random.choice(_TEXTS)} {self.hand.number()}"
        await self._change(known, f"{name}={shlex.quote(value)}", name, value)

    async def _define(self) -> None:
        known, value = self._any(), f"body {self.hand.number()}"
        await self._change(known, f"{_FUNCTION}() {{ echo {value}; }}", _FUNCTION, value)

    async def _change_directory(self) -> None:
        known, path = self._any(), self.hand.random.choice(_DIRECTORIES)
        await self._change(known, f"cd {path}", None, path)

    async def _set_env(self) -> None:
        known, name = self._any(), self.hand.random.choice(_EXPORTED)
        value = None if self.hand.random.random() < 0.2 else f"exported {self.hand.number()}"
        allowed = (SessionTerminated,) if known.may_have_ended else ()
        label = f"set-env {known.session.id} {name}={value}"
        answer = await self.hand.call(label, known.session.set_env({name: value}), *allowed)
        if answer.is_done:
            known.shell.variable(name).become(value)
        else:
            known.shell.variable(name).may_become(value)
            known.may_be_replaced = True
        known.shell.disturbed()
        if known.may_be_replaced:
            known.shell.set_since(name, value)

    async def _look(self) -> None:
        await self._observe(self._any())

    async def _observe(self, known: _Known, *, is_steady: bool = False) -> None:
        """Everything that is known of one, in one command."""
        values = " ".join(f'"${{{name}-{_UNSET}}}"' for name in _NAMES)
        command = f"printf '%s\\0' \"$PWD\" \"$({_FUNCTION} 2>/dev/null || echo '{_UNSET}')\" {values}"
        command = f"{command} # {self.hand.number()}"
        answer = await self._exec(known, command, is_steady=is_steady)
        if not answer.is_done:
            return
        found = answer.get().stdout.split("\0")[:-1]
        check("the shell answers in full", len(found) == 2 + len(_NAMES), answer.value)
        known.shell.cwd.observe(found[0], f"the directory of {known.session.id}")
        for name, value in zip((_FUNCTION, *_NAMES), found[1:], strict=True):
            seen = None if value == _UNSET else value
            known.shell.variable(name).observe(seen, f"{name} in {known.session.id}")
        known.shell.completed(command)

    async def _ask(self) -> None:
        """What is answered without the shell, once nothing is uncertain."""
        known = self._any()
        if known.may_have_ended or known.may_be_replaced or not known.shell.is_certain:
            return
        cwd = await self.hand.call(f"cwd {known.session.id}", known.session.cwd())
        if cwd.is_done:
            known.shell.cwd.observe(cwd.get(), "cwd()")
        env = await self.hand.call(f"env {known.session.id}", known.session.env())
        if env.is_done:
            for name in _EXPORTED:
                known.shell.variable(name).observe(env.get().get(name), f"{name} in env()")

    async def _for_one_call(self) -> None:
        """Directory and variables of a call are gone after it."""
        known, number = self._any(), self.hand.number()
        command = f'echo "$PWD $E1 {number}"; E1=inner; cd /'
        answer = await self._exec(known, command, cwd="/usr/bin", env={"E1": "call"})
        if answer.is_done:
            check(command, answer.get().stdout == f"/usr/bin call {number}\n", answer.value)
            known.shell.completed(command)

    async def _queue(self) -> None:
        """Calls at once run one after the other, in order."""
        known, name = self._any(), f"q{self.hand.number()}"
        command = f"{name}=$((${{{name}:-0}}+1)); echo ${name}"
        label = f"session-exec {known.session.id} three at once"
        allowed = (SessionTerminated,) if known.may_have_ended else ()
        answer = await self.hand.call(label, _at_once(known.session, command, 3), *allowed)
        if answer.is_done:
            self._note_replacement(known, *answer.get())
            numbers = [result.stdout for result in answer.get()]
            if self.hand.subject.where.is_served:
                numbers.sort()  # which of several connections is first is not said
            check("calls run in order", numbers == ["1\n", "2\n", "3\n"] or self.hand.is_disturbed, numbers)
            known.shell.completed(command)
        else:
            known.shell.unanswered(command)
            known.may_be_replaced = True

    async def _time_out(self) -> None:
        what = self.hand.random.choice(_ENDLESS)
        await self._interrupted(f"{what} # {self.hand.number()}")

    async def _time_out_stubborn(self) -> None:
        await self._interrupted(f"trap '' INT TERM RTMAX-7; while :; do :; done # {self.hand.number()}")

    async def _interrupted(self, command: str) -> None:
        known = self._any()
        answer = await self._exec(known, command, timeout=self.hand.random.choice((0.05, 0.2)))
        if answer.is_done:
            result = answer.get()
            check(command, result.timed_out and result.exit_code == 124, result)
        known.shell.disturbed()

    async def _start_process(self) -> None:
        """A process sees the session's variables and changes nothing."""
        known = self._any()
        value = known.shell.variable("v0")
        if known.may_be_replaced or not value.is_certain:
            return
        allowed = (SessionTerminated,) if known.may_have_ended else ()
        command = f'echo "${{v0-{_UNSET}}}"; v0=changed; cd /'
        started = known.session.start_process(command, id=self.hand.new_id("process"))
        answer = await self.hand.call(f"session-start {known.session.id}", started, *allowed)
        known.may_be_replaced = not answer.is_done
        if answer.is_done:
            output = await self.hand.call("output", answer.get().output(timeout=20))
            if output.is_done:
                seen = output.get().stdout.removesuffix("\n")
                value.observe(None if seen == _UNSET else seen, "v0 in a process of the session")

    async def _exit(self) -> None:
        known, code = self._any(), self.hand.random.randrange(1, 100)
        may_be_killed, known.may_have_ended = known.may_have_ended, True
        answer = await self._exec(known, f"exit {code}")
        if answer.error is None and answer.is_certain:
            raise Violation(f"the shell of {known.session.id} should have ended: {answer.get()!r}")
        if may_be_killed:
            return
        if isinstance(answer.error, SessionTerminated) and answer.is_certain and answer.error.exit_code != code:
            raise Violation(f"{known.session.id} ended with {answer.error.exit_code}, and must with {code}")

    async def _kill_shell(self) -> None:
        await self._signal_shell("KILL")

    async def _stop_shell(self) -> None:
        await self._signal_shell("STOP")

    async def _signal_shell(self, signal: str) -> None:
        """From inside, as anybody in the sandbox can."""
        known = self._any()
        pid = await self._exec(known, "echo $$")
        if not pid.is_done:
            return
        known.shell.completed("echo $$")
        known.may_have_ended = True
        killed = await self.hand.call(
            f"exec kill -{signal}", self.hand.sandbox.exec(f"kill -{signal} {pid.get().stdout}")
        )
        if not killed.is_done:
            return
        check("the shell was there to be killed", killed.get().ok or self.hand.is_disturbed, killed.value)
        answer = await self._exec(known, "echo alive", is_steady=True)
        if answer.is_done and not self.hand.is_disturbed:
            raise Violation(f"a shell answers after SIG{signal}: {answer.get()!r}")

    async def _delete(self) -> None:
        await self._drop(self._any())

    async def _drop(self, known: _Known) -> None:
        if known in self._known:
            self._known.remove(known)
        label = f"delete-session {known.session.id}"
        answer = await self.hand.call(label, known.session.delete(), SessionNotFound, is_steady=True)
        if answer.is_done:
            found = self.hand.sandbox.get_session(known.session.id)
            gone = await self.hand.call(f"get-session {known.session.id}", found, SessionNotFound)
            check("a deleted session is gone", not gone.is_done, known.session.id)

    async def verify(self) -> None:
        """See Surface."""
        for known in list(self._known):
            await self._observe(known, is_steady=True)

    async def empty(self) -> None:
        """See Surface."""
        self.forget()
        listed = await self.hand.call("list-sessions", self.hand.sandbox.list_sessions(), is_steady=True)
        for info in listed.value or ():
            deleted = self.hand.sandbox.delete_session(info.id)
            await self.hand.call(f"delete-session {info.id}", deleted, SessionNotFound, is_steady=True)


async def _at_once(session: Session, command: str, count: int) -> list[ExecResult]:
    calls = [asyncio.ensure_future(session.exec(command)) for _ in range(count)]
    try:
        return await asyncio.gather(*calls)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
