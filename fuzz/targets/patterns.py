"""Patterns of `.dockerignore`, of searches and of a policy's paths: no text takes long, and what is hidden stays so."""

from collections.abc import Iterator

from cove.agent.pattern import Filter, has_magic, name_matcher
from cove.core.network_policy import Refused, judge_request
from cove.errors import ValidationFailed
from cove.images.dockerignore import Ignore, split
from cove.model.network import NetworkRule

MOST_BYTES = 512


def check(data: bytes) -> None:
    """The path comes first, then a NUL, then the patterns, one on each line."""
    path, _, rules = data.partition(b"\0")
    parts = split(path)
    try:
        ignore = Ignore(rules)
    except ValidationFailed:
        return
    if parts and b".." not in parts:
        hides = ignore.hides(parts)
        assert not ignore.has_exceptions or isinstance(hides, bool)
        if hides and not ignore.has_exceptions:
            assert ignore.hides((*parts, b"below")), "what is below a hidden directory is hidden"
    _check_glob(path.decode("utf-8", "surrogateescape"), rules.decode("utf-8", "surrogateescape"))
    _check_policy(path.decode("latin-1"), rules.decode("latin-1"))


def _check_glob(path: str, text: str) -> None:
    patterns = text.split("\n")[:20]
    chosen = Filter(patterns, [])
    chosen.enters(path)
    chosen.shows(path)
    name = path.partition("/")[0]
    if name and not has_magic(name):
        assert name_matcher(name)(name)


def _check_policy(path: str, text: str) -> None:
    try:
        rule = NetworkRule("host.example", paths=tuple(text.split("\n")[:20]))
    except ValidationFailed:
        return
    refused = judge_request(rule, "host.example", "GET", path)
    assert refused is None or isinstance(refused, Refused)
    if refused is None and rule.paths:
        lowered = path.lower()
        assert "/../" not in path and "%2e" not in lowered and "\\" not in path and "//" not in path


def seeds() -> Iterator[bytes]:
    """Paths and patterns of every form."""
    yield b"a/b/c\0**/c\n!a\n# x\n a/*/[b-d]\n"
    yield b"x.py\0*.py\n[!a]*\n[z-a]\n[\n"
    yield b"/v1/models\0/v1/*\n/v1/**/x\n"
    yield b"aaaaaaaaaaaaaaaaaaaaaaaa\0*a*a*a*a*a*a*a*b\n**/**/**/x"
