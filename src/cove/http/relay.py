"""Interface of a relay, which writes the response itself: what it hears of its client, and what it can do."""

from abc import ABC, abstractmethod
from typing import Protocol

from cove.http.request import Request
from cove.http.response import Response


class Exchange(Protocol):
    """One request being answered, as a relay sees it."""

    request: Request

    @property
    def peer(self) -> str:
        """The client's address; nothing on a unix socket."""

    def write(self, data: bytes) -> None:
        """Raw bytes of the answer."""

    def respond(self, response: Response) -> None:
        """Give an ordinary answer after all; nothing has been written."""

    def fail(self, error: Exception) -> None:
        """Answer with this error; nothing has been written."""

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """The answer will never be complete: what was written is flushed, then the connection ends."""

    def switch(self) -> None:
        """The connection is raw from here on: what the client sends goes to the relay."""

    def pause_reading(self) -> None:
        """Take nothing from the client; only of a raw connection."""

    def resume_reading(self) -> None:
        """Take from the client again; only of a raw connection."""

    def write_eof(self) -> None:
        """Half-close: nothing more will be written; the client may still send."""


class Relay(ABC):
    """An answer that somebody else writes, byte by byte, without waiting."""

    __slots__ = ()

    @abstractmethod
    def begin(self, exchange: Exchange) -> None:
        """Answer this."""

    @abstractmethod
    def client_gone(self) -> None:
        """The client has disconnected: nobody waits for the response any more."""

    @abstractmethod
    def client_cancelled(self) -> None:
        """The client wants what it asked for ended, and waits for that: end it, then `cut`."""

    @abstractmethod
    def client_full(self) -> None:
        """The client does not take what is written: write less."""

    @abstractmethod
    def client_ready(self) -> None:
        """The client takes more."""

    @abstractmethod
    def client_data(self, data: bytes) -> None:
        """Receive what the client sent after an upgrade."""

    @abstractmethod
    def client_eof(self) -> None:
        """The client has half-closed after an upgrade: it sends nothing more."""
