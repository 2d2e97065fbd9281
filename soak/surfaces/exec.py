"""One command, one result."""

from collections.abc import Mapping

from cove.model import ExecResult, Outcome
from soak.hand import Answer, Step, Surface
from soak.model import check


class Commands(Surface):
    """Nothing is kept from call to call, so everything is checked at once."""

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        return {
            self._both_streams: 3,
            self._standard_input: 1,
            self._much: 0.4,
            self._late: 0.6,
            self._signal: 0.5,
            self._leftover: 0.5,
            self._no_program: 0.5,
        }

    async def _exec(self, command: str, **options: object) -> Answer[ExecResult]:
        return await self.hand.call(f"exec {command[:60]}", self.hand.sandbox.exec(command, **options))  # type: ignore[arg-type]  # as each step says

    async def _both_streams(self) -> None:
        number, code = self.hand.number(), self.hand.random.randrange(256)
        command = f"echo out-{number}-$A; echo err-{number} >&2; exit {code}"
        answer = await self._exec(command, env={"A": str(code)}, cwd="/tmp")
        if answer.is_done:
            result = answer.get()
            found = (result.outcome, result.exit_code, result.stdout, result.stderr)
            expected = (Outcome.EXITED, code, f"out-{number}-{code}\n", f"err-{number}\n")
            check(command, found == expected, found)

    async def _standard_input(self) -> None:
        data = self.hand.random.randbytes(self.hand.random.choice((0, 1, 1000, 100_000)))
        answer = await self._exec("cat", stdin=data)
        if answer.is_done:
            check("cat gives back what it got", answer.get().stdout_bytes == data, len(data))

    async def _much(self) -> None:
        size = self.hand.random.choice((1 << 20, 8 << 20))
        answer = await self._exec(f"head -c {size} /dev/zero", max_output=1 << 20)
        if answer.is_done:
            result = answer.get()
            check("output is bounded", result.ok and result.truncated is (size > 1 << 20), result.outcome)

    async def _late(self) -> None:
        answer = await self._exec("echo before; sleep 100 & sleep 100", timeout=0.1)
        if answer.is_done:
            result = answer.get()
            check("a timeout ends it", result.timed_out and result.stdout in ("", "before\n"), result)

    async def _signal(self) -> None:
        answer = await self._exec("kill -9 $$")
        if answer.is_done:
            result = answer.get()
            check("it died by signal 9", (result.signal, result.exit_code) == (9, 137), result)

    async def _leftover(self) -> None:
        answer = await self._exec("sleep 0.3 & yes > /dev/null & sleep 0.01; kill $!; echo done")
        if answer.is_done:
            check("a child in the background is no hindrance", answer.get().stdout == "done\n", answer.value)

    async def _no_program(self) -> None:
        name = f"/no-program-{self.hand.number()}"
        answer = await self._exec(name)
        if answer.is_done:
            check("a missing program is 127", answer.get().exit_code == 127, answer.value)
