"""Builds of images: what is asked for, and what is told meanwhile."""

from collections.abc import Mapping

import msgspec

from cove.model.network import Network, NetworkPolicy
from cove.model.spec import Limits


class BuildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a build: see `AsyncImage.build`. `shown` is how errors name the Dockerfile, by its path otherwise."""

    name: str | None = None
    dockerfile: str = "Dockerfile"
    build_args: Mapping[str, str] = {}
    target: str | None = None
    preset: str | None = None
    base: str | None = None
    network: Network | NetworkPolicy | None = None
    limits: Limits = Limits()
    timeout: float | None = None
    cache: bool = True
    shown: str | None = None


class BuildStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step has begun: number `number` of `total`, the instruction at `line`. With `is_cached` it is done already."""

    number: int
    total: int
    line: int
    instruction: str
    is_cached: bool = False


class BuildOutput(msgspec.Struct, frozen=True, kw_only=True, tag="output"):
    """Output of a step: `stream` is `stdout` or `stderr`."""

    stream: str
    data: bytes


BuildEvent = BuildStep | BuildOutput
