"""Describe and select sandboxes as E2B's protocol does: running or paused, newest first, page by page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, unquote

from cove.model import SandboxInfo, SandboxStatus, VolumeMount
from cove.server.e2b.filesystem import timestamp
from cove.server.e2b.life import cpu_count, machine_memory
from cove.server.e2b.protocol import ENVD_VERSION, Refusal
from cove.server.e2b.record import E2bRecord

_ENDLESS: Final = timedelta(days=3650)
_MOST_LISTED: Final = 100
_MOST_PAIRS: Final = 64
STATES: Final = ("running", "paused")


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox, and what its maker chose; None for one that was made otherwise."""

    info: SandboxInfo
    record: E2bRecord | None

    @property
    def id(self) -> str:
        """Return its id."""
        return self.info.id

    @property
    def state(self) -> str:
        """Running, or paused: there is nothing else."""
        return "running" if self.info.status is SandboxStatus.RUNNING else "paused"

    @property
    def template(self) -> str:
        """The template that it was made of."""
        return self.info.spec.image if self.record is None else self.record.template

    @property
    def metadata(self) -> dict[str, str]:
        """Return its labels, and what of the metadata could be none."""
        return {**self.info.spec.labels, **({} if self.record is None else self.record.metadata)}

    @property
    def ends_at(self) -> datetime:
        """The time when it is destroyed or paused; one that has no end has it far away."""
        end = self.info.ends_at
        if self.record is not None and self.record.auto_pause:
            end = self.record.pauses_at
        return end or self.info.created_at + _ENDLESS

    def describe(self) -> dict[str, object]:
        """Describe it as lists do."""
        limits = self.info.spec.limits
        mounts = [each for each in self.info.spec.mounts if isinstance(each, VolumeMount)]
        return {
            "sandboxID": self.id,
            "templateID": self.template,
            "alias": self.template,
            "clientID": "cove",
            "startedAt": timestamp(self.info.created_at),
            "endAt": timestamp(self.ends_at),
            "cpuCount": cpu_count(limits.cpus),
            "memoryMB": (limits.memory or machine_memory()) >> 20,
            "diskSizeMB": (limits.disk or 0) >> 20,
            "metadata": self.metadata,
            "state": self.state,
            "envdVersion": ENVD_VERSION,
            "volumeMounts": [{"name": each.volume, "path": each.target} for each in mounts],
        }


def select(found: Sequence[Found], query: Mapping[str, str]) -> tuple[list[Found], str | None]:
    """Return a page of those that a query asks for, and the token of the next one."""
    wanted = [each for each in found if _is_wanted(each, query)]
    wanted.sort(key=_position, reverse=query.get("order", "desc") != "asc")
    return page(wanted, [_token(each) for each in wanted], query)


def page(items: list[Found], tokens: Sequence[str], query: Mapping[str, str]) -> tuple[list[Found], str | None]:
    """Cut what comes after a token."""
    text = query.get("limit", str(_MOST_LISTED))
    if not text.isdigit() or len(text) > 6 or int(text) < 1:
        raise Refusal(400, "limit must be a number, at least 1")
    limit = min(int(text), _MOST_LISTED)
    begin = _after(query.get("nextToken", ""), tokens, query.get("order", "desc") == "asc")
    return items[begin : begin + limit], tokens[begin + limit - 1] if begin + limit < len(items) else None


def _after(token: str, tokens: Sequence[str], is_ascending: bool) -> int:
    """Return where a page begins; what the token named may be gone."""
    if not token:
        return 0
    behind = [each <= token if is_ascending else each >= token for each in tokens]
    return sum(behind)


def _position(found: Found) -> tuple[datetime, str]:
    return found.info.created_at, found.id


def _token(found: Found) -> str:
    """A text that sorts as its sandbox does."""
    return f"{found.info.created_at.astimezone(UTC):%Y%m%dT%H%M%S.%f}-{found.id}"


def _is_wanted(found: Found, query: Mapping[str, str]) -> bool:
    states = query.get("state") or ",".join(STATES)
    metadata = decode_metadata(query.get("metadata", ""))
    since = _time(query.get("startedAfter"))
    return (
        found.state in states.split(",")
        and metadata.items() <= found.metadata.items()
        and query.get("template") in (None, "", found.template)
        and (since is None or found.info.created_at > since)
    )


def decode_metadata(text: str) -> dict[str, str]:
    """Decode the metadata of a query, whose keys and values are quoted once more."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PAIRS)
    except ValueError:
        raise Refusal(400, "the query has too much metadata") from None
    return {unquote(key): unquote(value) for key, value in pairs}


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(400, "startedAfter must be a time as RFC 3339 has it") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
