"""Image references: `name`, `name:tag`, `host:port/name:tag`, `name@sha256:…`."""

import re
from dataclasses import dataclass

from cove.errors import ValidationFailed

DEFAULT_TAG = "latest"
MOST_CHARACTERS = 255
_HOST = re.compile(r"(localhost|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+|\[[0-9a-fA-F:]+\]|[a-zA-Z0-9.-]+(?=:))(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of an image; `host` is the registry it comes from, and empty for one that was only loaded or built."""

    host: str
    name: str
    tag: str
    digest: str | None = None

    @property
    def repository(self) -> str:
        """The name of all its versions together."""
        return f"{self.host}/{self.name}" if self.host else self.name

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """Parse a reference; ValidationFailed says what is wrong with it."""
    if len(text) > MOST_CHARACTERS:
        raise ValidationFailed(f"the name of an image has at most {MOST_CHARACTERS} characters")
    rest, _, digest = text.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        raise ValidationFailed(f"{text!r} is no image: after @ comes sha256: and 64 hexadecimal digits")
    host, slash, name = rest.partition("/")
    if not slash or not _HOST.fullmatch(host):
        host, name = "", rest
    name, colon, tag = name.partition(":")
    if not _NAME.fullmatch(name):
        raise ValidationFailed(f"{text!r} is no image: a name is lower-case letters, digits, and . _ - / between them")
    if colon and not _TAG.fullmatch(tag):
        raise ValidationFailed(f"{text!r} is no image: a tag is letters, digits and . _ -, at most 128")
    return Reference(host, name, tag or DEFAULT_TAG, digest or None)
