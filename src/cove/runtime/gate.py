"""The gate of a sandbox: every call of a user goes through it, which wakes what sleeps and counts what is under way.

A class whose methods are calls is decorated by `gated`: each method that its interface in `cove.api` declares then
waits for the gate before it begins. Calls of our own code to private methods do not, and neither do those that look at
a sandbox or change its life.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from functools import wraps
from typing import ClassVar, Protocol, TypeVar, cast

T = TypeVar("T")


class Gate(Protocol):
    """Lets calls in, or says why not."""

    @property
    def is_open(self) -> bool:
        """Return whether a call may begin without asking."""

    async def ready(self, *, starts: bool = True) -> None:
        """Wait until it is open, and wake what sleeps; without `starts`, only what is paused."""

    def begin(self) -> None:
        """Count a call."""

    def end(self) -> None:
        """Count one call less."""


class OpenGate:
    """A gate without a sandbox behind it."""

    is_open: ClassVar[bool] = True

    async def ready(self, *, starts: bool = True) -> None:
        """Do nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Gated(Protocol):
    """An object that has a gate."""

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""


M = TypeVar("M", bound=Callable[..., Awaitable[object]])
S = TypeVar("S", bound=Callable[..., AsyncGenerator[object, None]])


def gated(*, starts: bool = True, streams: Collection[str] = (), free: Collection[str] = ()) -> Callable[[T], T]:
    """Make the calls of a class go through the gate.

    Without `starts` they resume what is paused, but start nothing: what they are about has ended with the sandbox.
    `streams` are methods that return a stream and are no generators themselves, `free` those that need no gate.
    """

    def decorate(kind: T) -> T:
        declared = {name for base in inspect.getmro(kind)[1:] for name in getattr(base, "__abstractmethods__", ())}  # type: ignore[arg-type]  # a class
        for name, method in list(vars(kind).items()):
            if name not in declared or name in free:
                continue
            if inspect.iscoroutinefunction(method):
                setattr(kind, name, gated_call(method, starts=starts))
            elif inspect.isasyncgenfunction(method) or name in streams:
                setattr(kind, name, gated_stream(method, starts=starts))
        return kind

    return decorate


def gated_call(method: M, *, starts: bool = True) -> M:
    """Make one method go through the gate."""

    @wraps(method)
    async def call(self: Gated, *arguments: object, **named: object) -> object:
        gate = self.gate
        if not gate.is_open:
            await gate.ready(starts=starts)
        gate.begin()
        try:
            return await method(self, *arguments, **named)
        finally:
            gate.end()

    return cast("M", call)


def gated_stream(method: S, *, starts: bool = True) -> S:
    """Make a method that streams go through the gate; it counts until the stream is closed."""

    @wraps(method)
    async def stream(self: Gated, *arguments: object, **named: object) -> AsyncGenerator[object, None]:
        gate = self.gate
        if not gate.is_open:
            await gate.ready(starts=starts)
        gate.begin()
        try:
            async with aclosing(method(self, *arguments, **named)) as items:
                async for item in items:
                    yield item
        finally:
            gate.end()

    return cast("S", stream)
