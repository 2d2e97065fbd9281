"""Decide what a build builds, from what was asked for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cove.errors import ValidationFailed
from cove.images.build_source import BuildSource
from cove.images.dockerfile_parser import MOST_BYTES
from cove.images.preset import BASE, find_preset
from cove.images.reference import parse_reference
from cove.model import BuildSpec, Network, NetworkPolicy, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A build with everything decided."""

    directory: str
    name: str
    arguments: Mapping[str, str]
    dockerfile: str
    shown: str
    target: str | None
    sandbox: SandboxSpec
    timeout: float | None
    uses_cache: bool


def make_order(directory: str | None, spec: BuildSpec) -> Order:
    """Decide what was left open. Raises ValidationFailed."""
    if (directory is None) == (spec.preset is None):
        raise ValidationFailed("a build needs a directory, or a preset, and not both")
    if spec.base is not None and spec.preset is None:
        raise ValidationFailed("base is for a preset: a Dockerfile says it by FROM")
    name = spec.name or spec.preset
    if name is None:
        raise ValidationFailed("give the image a name")
    arguments = dict(spec.build_args)
    if not all(isinstance(text, str) for pair in arguments.items() for text in pair):
        raise ValidationFailed("build_args are names with values, both strings")
    network = spec.network
    if spec.preset is not None:
        arguments |= {} if spec.base is None else {BASE: spec.base}
        network = NetworkPolicy(allow=["packages"]) if network is None else network
    return Order(
        directory=directory or find_preset(spec.preset or ""),
        name=str(parse_reference(name)),
        arguments=arguments,
        dockerfile=spec.dockerfile,
        shown=spec.shown or _shown(spec.dockerfile),
        target=spec.target,
        sandbox=SandboxSpec(network=Network.NONE if network is None else network, limits=spec.limits),
        timeout=spec.timeout,
        uses_cache=spec.cache,
    )


def _shown(path: str) -> str:
    """Return how errors name a Dockerfile: an absolute one from the caller's directory, if it is below that."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def read_dockerfile(context: BuildSource, path: str) -> str:
    """Read it within the build's directory; an absolute path is the caller's own."""
    if os.path.isabs(path):
        try:
            with open(path, "rb") as file:
                data: bytes | None = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise ValidationFailed(f"cannot read {path}: {error.strerror}") from None
    else:
        data = context.view.read(path, MOST_BYTES + 1)
    if data is None:
        raise ValidationFailed(f"the directory has no {path}: name another by dockerfile=, or -f")
    return data.decode("utf-8", "replace")
