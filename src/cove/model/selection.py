"""Selections: which sandboxes of all are meant, by their labels and status."""

from collections.abc import Mapping

import msgspec

from cove.errors import ValidationFailed
from cove.model.info import SandboxInfo, SandboxStatus
from cove.model.spec import check_labels


class Selection(msgspec.Struct, frozen=True):
    """All of these labels, and this status; None is any."""

    labels: Mapping[str, str] = {}
    status: SandboxStatus | None = None

    @classmethod
    def of(cls, labels: Mapping[str, str] | None, status: SandboxStatus | str | None) -> "Selection":
        """A selection that was checked; raises ValidationFailed."""
        try:
            made = msgspec.convert({"labels": labels or {}, "status": status}, cls)
        except msgspec.ValidationError as error:
            raise ValidationFailed(f"sandboxes cannot be selected so: {error}") from None
        check_labels(made.labels)
        return made

    def has(self, info: SandboxInfo) -> bool:
        """Return whether that sandbox is meant."""
        is_status = self.status is None or info.status is self.status
        return is_status and self.labels.items() <= info.spec.labels.items()
