"""Decide what a build builds, from what was asked for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cove.errors import ValidationFailed
from cove.images.build_source import BuildSource
from cove.images.context_archive import read_bounded, shown_name
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
    if not all(isinstance(text, str) and _is_text(text) for pair in arguments.items() for text in pair):
        raise ValidationFailed("build_args are names with values, both strings of UTF-8 without NUL")
    if spec.base is not None:
        arguments[BASE] = spec.base
    return Order(
        directory=directory or find_preset(spec.preset or ""),
        name=str(parse_reference(name)),
        arguments=arguments,
        dockerfile=spec.dockerfile,
        shown=spec.shown or shown_name(spec.dockerfile),
        target=spec.target,
        sandbox=sandbox_of(spec),
        timeout=spec.timeout,
        uses_cache=spec.cache,
    )


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def sandbox_of(spec: BuildSpec) -> SandboxSpec:
    """Return what the sandboxes of a build have: presets reach packages, and others nothing, unless they say so."""
    network = spec.network
    if network is None:
        network = Network.NONE if spec.preset is None else NetworkPolicy(allow=["packages"])
    return SandboxSpec(network=network, limits=spec.limits)


def read_dockerfile(context: BuildSource, path: str) -> str:
    """Read it within the build's directory; an absolute path is the caller's own."""
    if os.path.isabs(path):
        data: bytes | None = read_bounded(path, MOST_BYTES)
    else:
        data = context.view.read(path, MOST_BYTES + 1)
    if data is None:
        raise ValidationFailed(f"the directory has no {path}: name another by dockerfile=, or -f")
    return data.decode("utf-8", "replace")
