"""The network policy: what it allows is reached, all else is refused at once, before and after every change."""

from collections.abc import Mapping

from cove import Network
from cove.model import ExecResult
from soak.hand import Answer, Hand, Step, Surface
from soak.model import check
from soak.subject import policy_name, policy_of
from soak.world import HOSTS

_POLICIES = (HOSTS[0], HOSTS[1], ",".join(HOSTS), "")


class Policies(Surface):
    """Changed, tried, and looked up."""

    weight = 2.0

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._unanswered = False

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        return {
            self._change: 1,
            self._reach: 4,
            self._ask: 1,
            self._kill_egress: 0 if self.hand.subject.where.is_calm else 0.25,
        }

    async def _change(self) -> None:
        policy, subject = self.hand.random.choice(_POLICIES), self.hand.subject
        network = policy_of(policy, subject.where.world.port) if policy else Network.NONE
        answer = await self.hand.call(f"set-network {policy}", self.hand.sandbox.set_network(network))
        if not answer.is_done:
            await subject.recover()  # it may still be made: the same once more comes after it
            await self.hand.insist(f"set-network {policy}", lambda: self.hand.sandbox.set_network(network))
        subject.policy.become(policy)

    async def _settle(self) -> None:
        """Let the sandbox say which policy holds."""
        await self.hand.subject.recover()
        info = await self.hand.insist("info", self.hand.sandbox.info)
        assert info is not None
        self.hand.subject.policy.observe(policy_name(info.spec.network), "the policy")

    async def _ask(self) -> None:
        answer = await self.hand.call("info", self.hand.sandbox.info())
        if answer.is_done:
            self.hand.subject.policy.observe(policy_name(answer.get().spec.network), "the policy")

    async def _reach(self) -> None:
        host = self.hand.random.choice(HOSTS)
        await self._observe(host)

    async def _observe(self, host: str, *, is_steady: bool = False) -> None:
        policy = self.hand.subject.policy
        answer = await self._fetch(host, is_steady=is_steady)
        before, self._unanswered = self._unanswered, not answer.is_done
        if not answer.is_done or not policy.is_certain:
            return
        result = answer.get()
        if host not in policy.certain.split(","):
            check(f"{host} is refused", not result.ok and "hello" not in result.stdout, result)
            named = any(denial.host == host for denial in result.denied)
            check(f"{host} is named as refused", named or not policy.certain or self.hand.is_disturbed, result)
        elif not self.hand.is_disturbed:
            check(f"{host} is reached", result.ok and result.stdout == f"hello from {host}", result)
            # What a command that was cancelled had asked for may be refused a moment later.
            check("nothing was refused", before or not result.denied, result)

    async def _fetch(self, host: str, *, is_steady: bool) -> Answer[ExecResult]:
        port = self.hand.subject.where.world.port
        request = f"printf 'GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n' >&3"
        command = f"exec 3<>/dev/tcp/{host}/{port} && {request} && sed '1,/^\\r*$/d' <&3"
        return await self.hand.call(f"fetch {host}", self.hand.sandbox.exec(command, timeout=30), is_steady=is_steady)

    async def _kill_egress(self) -> None:
        await self.hand.subject.kill_egress()

    async def verify(self) -> None:
        """See Surface."""
        await self._settle()
        for host in HOSTS:
            await self._observe(host, is_steady=True)
