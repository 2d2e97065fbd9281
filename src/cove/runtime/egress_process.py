"""One egress process, as the runtime sees it: what it is told, what it says, its end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cove.agent.protocol import ProtocolError
from cove.core.egress_protocol import (
    CONFIGURE,
    TOTALS_BYTES,
    Configure,
    Configured,
    Report,
    Sync,
    Synced,
    Totals,
    decode_from_egress,
    decode_totals,
    encode,
)
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.linux.descriptors import sealed_file
from cove.linux.packets import receive_packet, socket_pair
from cove.linux.pidfd import reap
from cove.local.threads import close_all, in_thread, start_in_thread
from cove.model.network import Network, NetworkPolicy
from cove.runtime.home import Home
from cove.tasks import settled

# A process that begins has its interpreter and modules to load first.
START_SECONDS = 30.0
CONFIRM_SECONDS = 10.0
_SYNC_SECONDS = 2.0
# Whatever else the environment holds, keys and tokens too, is nothing that it needs.
_PASSED_VARIABLES = frozenset(
    (
        *("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "RES_OPTIONS", "LOCALDOMAIN"),
    )
)


@dataclass(frozen=True, slots=True)
class EgressFiles:
    """The host's files that an egress process is given: the key of its authority, its totals, and cassettes.

    They are opened here: it has the rights of `user_id`, the sandbox's own host user, where there is one. Cassettes are
    a tenant's own.
    """

    key: Path
    totals: Path
    home: Home
    user_id: int | None = None

    @property
    def _cassettes(self) -> Path:
        return self.home.own / "cassettes"

    def cassette(self, name: str) -> Path:
        """Return the file of a cassette: of the tenant that the sandbox belongs to by now."""
        return self._cassettes / f"{name}.jsonl"

    def prepare(self, network: Network | NetworkPolicy) -> None:
        """Make the directory of cassettes for one that is recorded. Raises ValidationFailed for one that is not there.

        Blocks.
        """
        if isinstance(network, NetworkPolicy) and network.record is not None:
            self._cassettes.mkdir(mode=0o700, parents=True, exist_ok=True)
        if isinstance(network, NetworkPolicy) and network.replay is not None:
            path = self.cassette(network.replay)
            if not path.is_file():
                raise ValidationFailed(f"there is no cassette {network.replay}: record it first ({path})")


def read_totals(path: Path) -> Totals | None:
    """Return what has been counted in that file; None where no policy has ever held. Blocks."""
    try:
        with path.open("rb") as file:
            return decode_totals(file.read(TOTALS_BYTES))
    except FileNotFoundError:
        return None


class OpenFiles:
    """The files that go with a policy, open until they are sent: key, totals, and the cassette if there is one."""

    def __init__(self, files: EgressFiles, network: Network | NetworkPolicy) -> None:
        policy = network if isinstance(network, NetworkPolicy) else NetworkPolicy()
        self.descriptors: list[int] = []
        try:
            for path in (files.key, files.totals):
                self.descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            os.truncate(self.descriptors[-1], TOTALS_BYTES)
            if policy.record is not None:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self.descriptors.append(os.open(files.cassette(policy.record), flags, 0o600))
            elif policy.replay is not None:
                self.descriptors.append(os.open(files.cassette(policy.replay), os.O_RDONLY | os.O_CLOEXEC))
        except BaseException:
            close_all(self.descriptors)
            raise

    def __enter__(self) -> "OpenFiles":
        return self

    def __exit__(self, *_: object) -> None:
        close_all(self.descriptors)


class EgressProcess:
    """One egress process: what it is told, what it says, its end."""

    def __init__(self, take: Callable[[Report], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._sock, self._theirs = socket_pair()
        self._pid: int | None = None
        self._pidfd = -1
        self._starting: asyncio.Future[tuple[int, int]] | None = None
        self._confirmations: list[asyncio.Future[str | None]] = []
        self._syncs: dict[int, asyncio.Future[str | None]] = {}
        self._tag = 0
        self.sockets: set[int | str] = set()
        self.is_configured = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def patience(self) -> float:
        """Return how many seconds it may take to confirm a policy."""
        return CONFIRM_SECONDS if self.is_configured else START_SECONDS

    async def start(self, user_id: int | None) -> None:
        """Start it, with the rights of that user or with ours. Raises SandboxUnavailable."""
        self._starting = start_in_thread(_popen, self._theirs, user_id)
        try:
            await settled(self._starting)
        except OSError as error:
            raise SandboxUnavailable(f"the egress process did not start: {error.strerror or error}") from error
        self._pid, self._pidfd = self._starting.result()
        self._loop.add_reader(self._sock, self._read)

    async def configure(self, message: Configure, descriptors: Sequence[int]) -> str | None:
        """Returns when the policy holds, with its certificate. Raises OSError or TimeoutError."""
        confirmed: asyncio.Future[str | None] = self._loop.create_future()
        with sealed_file(encode(message)) as file:
            socket.send_fds(self._sock, [CONFIGURE], [file.fileno(), *descriptors])
        self._confirmations.append(confirmed)
        async with asyncio.timeout(self.patience):
            certificate = await confirmed
        self.is_configured = True
        return certificate

    async def sync(self) -> None:
        """Returns when all that happened before has been said. Raises OSError or TimeoutError."""
        self._tag += 1
        answered = self._syncs[self._tag] = self._loop.create_future()
        try:
            self._sock.send(encode(Sync(tag=self._tag)))
            async with asyncio.timeout(_SYNC_SECONDS):
                await answered
        finally:
            self._syncs.pop(self._tag, None)

    def _read(self) -> None:
        try:
            packet = receive_packet(self._sock)
            if packet is None:
                raise ConnectionResetError("the egress process has ended")
            close_all(packet.descriptors)
            packet.check()
            self._hear(decode_from_egress(packet.data))
        except BlockingIOError:
            return
        except (OSError, ProtocolError, msgspec.DecodeError, IndexError) as error:  # the next one begins anew
            self._lose(error)

    def _hear(self, message: Configured | Synced | Report) -> None:
        match message:
            case Configured():
                if not (confirmed := self._confirmations.pop(0)).done():
                    confirmed.set_result(message.certificate)
            case Synced():
                if (answered := self._syncs.get(message.tag)) is not None and not answered.done():
                    answered.set_result(None)
            case Report():
                self._take(message)

    def _lose(self, error: Exception) -> None:
        self._loop.remove_reader(self._sock)
        self.kill()
        waiting: list[asyncio.Future[str | None]] = [*self._confirmations, *self._syncs.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionResetError(str(error)))
        self._confirmations.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    def kill(self) -> None:
        """End it, and with it all that it carries."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        """End it and wait until it is gone, also when its start was cancelled."""
        if self._starting is not None and not self._starting.cancelled() and self._starting.exception() is None:
            self._pid, self._pidfd = self._starting.result()
        self._lose(ConnectionResetError("the egress process was ended"))
        self._sock.close()
        self._theirs.close()
        if self._pid is not None:
            await in_thread(reap, self._pid)
            os.close(self._pidfd)
            self._pidfd, self._pid, self._starting = -1, None, None


def _popen(sock: socket.socket, user_id: int | None) -> tuple[int, int]:
    """Start the process with one end of the socket, and nothing else of ours: its pid and pidfd. Blocks."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cove.egress.process", str(sock.fileno()), str(user_id or "")],
        env={name: value for name, value in os.environ.items() if name in _PASSED_VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(sock.fileno(),),
        cwd="/",
        start_new_session=True,
    )
    sock.close()
    process.returncode = 0  # from here on the child is waited for by its pidfd
    return process.pid, os.pidfd_open(process.pid)
