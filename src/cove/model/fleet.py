"""The result of one task of a fleet."""

from typing import Generic, TypeVar

import msgspec

from cove.errors import CoveError
from cove.model.code import Execution
from cove.model.result import ExecResult, ProcessExit

Item = TypeVar("Item")
Value = TypeVar("Value")


class TaskResult(msgspec.Struct, Generic[Item, Value], frozen=True, kw_only=True):
    """The result of one item: the `value` that its task returned, or the `error` that it raised last.

    `index` is the item's place among the items; `attempts` is how often the task was begun, `duration` the seconds of
    the last attempt.
    """

    index: int
    item: Item
    value: Value | None = None
    error: Exception | None = None
    attempts: int = 1
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether the task returned a value, and nothing of Cove or the machine failed meanwhile."""
        return self.error is None and not self.is_infrastructure_failure

    @property
    def is_infrastructure_failure(self) -> bool:
        """Return whether Cove or the machine failed, each time: a trainer must not score this."""
        if self.error is None:
            return isinstance(self.value, ExecResult | ProcessExit | Execution) and self.value.is_infrastructure_failure
        return isinstance(self.error, CoveError) and self.error.is_infrastructure_failure

    def check(self) -> Value | None:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value
