"""What a value can be: certain after an answer, one of several after a call that nobody saw the end of."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Violation(Exception):
    """Something that must be true is not."""


class Possible(Generic[T]):
    """The values that are consistent with everything seen; never empty."""

    __slots__ = ("_values",)

    def __init__(self, *values: T) -> None:
        assert values
        self._values = list(dict.fromkeys(values))

    @property
    def values(self) -> Sequence[T]:
        """All of them, those that have been possible longest first."""
        return self._values

    @property
    def is_certain(self) -> bool:
        """Whether there is only one."""
        return len(self._values) == 1

    @property
    def certain(self) -> T:
        """The only one."""
        assert self.is_certain, self
        return self._values[0]

    def become(self, value: T) -> None:
        """A change was answered."""
        self._values = [value]

    def may_become(self, *values: T) -> None:
        """A change was asked for and may have happened."""
        self._values = list(dict.fromkeys((*self._values, *values)))

    def change(self, how: Callable[[T], T], *, is_certain: bool) -> None:
        """A change that depends on what was there."""
        changed = list(dict.fromkeys(map(how, self._values)))
        self._values = changed if is_certain else list(dict.fromkeys((*self._values, *changed)))

    def observe(self, value: T, subject: str) -> None:
        """It was looked at: from here on it is this value."""
        if value not in self._values:
            expected = " or ".join(_short(each) for each in self._values)
            raise Violation(f"{subject} is {_short(value)}, and must be {expected}")
        self._values = [value]

    def copy(self) -> "Possible[T]":
        """The same possibilities, to remember."""
        return Possible(*self._values)

    def __repr__(self) -> str:
        return f"Possible({', '.join(map(_short, self._values))})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]} ({len(text)} characters)"
