"""Code contexts whose globals are known."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cove.api import CodeContext
from cove.errors import ContextCrashed, ContextNotFound
from cove.model import Execution, Outcome
from soak.hand import Answer, Hand, Step, Surface
from soak.model import check
from soak.possible import Possible, Violation

_MOST = 2
_NAMES = ("a", "b", "c")
_LOOK = "import json; print(json.dumps({name: globals().get(name) for name in %r}))"


@dataclass
class _Known:
    """A context and its globals."""

    context: CodeContext
    variables: dict[str, Possible[int | None]] = field(
        default_factory=lambda: {name: Possible[int | None](None) for name in _NAMES}
    )
    may_have_ended: bool = False


class CodeContexts(Surface):
    """Python contexts: assigned to, looked at, interrupted, crashed."""

    weight = 0.7

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._known: list[_Known] = []

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        if not self.hand.subject.where.has_python:
            return {}
        some = 1.0 if self._known else 0.0
        return {
            self._create: 1 if len(self._known) < _MOST else 0,
            self._assign: 3 * some,
            self._look: 3 * some,
            self._raise: 0.5 * some,
            self._time_out: 0.5 * some,
            self._crash: 0.2 * some,
            self._kill: 0.2 * some,
            self._delete: 0.2 * some,
            self._borrow: 0.3,
        }

    def forget(self) -> None:
        """See Surface."""
        self._known.clear()

    def _any(self) -> _Known:
        return self.hand.random.choice(self._known)

    async def _create(self) -> None:
        id = self.hand.new_id("context")
        answer = await self.hand.call(f"create-context {id}", self.hand.sandbox.create_code_context(id=id))
        if answer.is_done:
            self._known.append(_Known(answer.get()))

    async def _run(
        self, known: _Known, code: str, *, timeout: float | None = None, is_steady: bool = False
    ) -> Answer[Execution]:
        allowed = (ContextCrashed,) if known.may_have_ended else ()
        label = f"run-code {known.context.id} {code[:60]!r}"
        answer = await self.hand.call(label, known.context.run(code, timeout=timeout), *allowed, is_steady=is_steady)
        if isinstance(answer.error, ContextCrashed) and known in self._known:
            await self._drop(known)
        return answer

    async def _assign(self) -> None:
        known, name, value = self._any(), self.hand.random.choice(_NAMES), self.hand.number()
        answer = await self._run(known, f"{name} = {value}")
        if answer.is_done:
            check("an assignment succeeds", answer.get().error is None, answer.value)
            known.variables[name].become(value)
        else:
            known.variables[name].may_become(value)

    async def _look(self) -> None:
        await self._observe(self._any())

    async def _observe(self, known: _Known, *, is_steady: bool = False) -> None:
        answer = await self._run(known, _LOOK % (_NAMES,), is_steady=is_steady)
        if answer.is_done:
            check("the context answers", answer.get().error is None, answer.value)
            for name, value in json.loads(answer.get().stdout).items():
                known.variables[name].observe(value, f"{name} in {known.context.id}")

    async def _raise(self) -> None:
        answer = await self._run(self._any(), "1/0")
        if answer.is_done:
            error = answer.get().error
            check("an error is a result", error is not None and error.name == "ZeroDivisionError", answer.value)

    async def _time_out(self) -> None:
        code = self.hand.random.choice(("while True: pass", "import time; time.sleep(100)"))
        answer = await self._run(self._any(), code, timeout=0.2)
        if answer.is_done:
            check("a timeout interrupts", answer.get().outcome is Outcome.TIMED_OUT, answer.value)

    async def _crash(self) -> None:
        known = self._any()
        known.may_have_ended = True
        answer = await self._run(known, "import os; os._exit(3)")
        if answer.is_done:
            raise Violation(f"a crash was no crash: {answer.get()!r}")

    async def _kill(self) -> None:
        known = self._any()
        pid = await self._run(known, "import os; print(os.getpid())")
        if not pid.is_done:
            return
        known.may_have_ended = True
        killed = await self.hand.call("exec kill -KILL", self.hand.sandbox.exec(f"kill -KILL {pid.get().stdout}"))
        if not killed.is_done:
            return
        check("the executor was there to be killed", killed.get().ok or self.hand.is_disturbed, killed.value)
        answer = await self._run(known, "1", is_steady=True)
        if answer.is_done:
            raise Violation(f"an executor answers after SIGKILL: {answer.get()!r}")

    async def _delete(self) -> None:
        await self._drop(self._any())

    async def _drop(self, known: _Known) -> None:
        if known in self._known:
            self._known.remove(known)
        label = f"delete-context {known.context.id}"
        await self.hand.call(label, known.context.delete(), ContextNotFound, is_steady=True)

    async def _borrow(self) -> None:
        code = f"sorted(set({_NAMES!r}) & set(globals()))"
        answer = await self.hand.call("run-code borrowed", self.hand.sandbox.run_code(code))
        if answer.is_done:
            check("a borrowed executor is clean", answer.get().text == "[]", answer.value)

    async def verify(self) -> None:
        """See Surface."""
        for known in list(self._known):
            await self._observe(known, is_steady=True)

    async def empty(self) -> None:
        """See Surface."""
        self.forget()
        listed = await self.hand.call("list-contexts", self.hand.sandbox.list_code_contexts(), is_steady=True)
        for info in listed.value or ():
            deleted = self.hand.sandbox.delete_code_context(info.id)
            await self.hand.call(f"delete-context {info.id}", deleted, ContextNotFound, is_steady=True)
