"""Signal numbers by name."""

import signal

from cove.errors import ValidationFailed


def parse_signal(value: int | str) -> int:
    """A number, `TERM` or `SIGTERM`; anything else is ValidationFailed."""
    if isinstance(value, str):
        name = value.upper()
        known = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        if known is not None:
            return int(known)
    elif not isinstance(value, bool) and value in range(1, signal.NSIG):
        return int(value)
    raise ValidationFailed(f"unknown signal {value!r}: use a name like 'TERM' or a number from 1 to {signal.NSIG - 1}")
