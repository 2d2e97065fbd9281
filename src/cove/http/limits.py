"""Limits on what one client may cost a server: sizes, timeouts, connections."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes and seconds."""

    head_bytes: int = 64 << 10
    headers: int = 100
    head_timeout: float = 10.0
    body_idle_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    buffered_body_bytes: int = 256 << 10
    drained_bytes: int = 16 << 20
    drain_timeout: float = 5.0
    connections: int = 4096
