"""Dockerfiles: stages of steps within bounds, or the line that is wrong; variables and quotes in any nesting."""

from collections.abc import Iterator

import dockerfile

from cove.errors import ValidationFailed
from cove.images.dockerfile import MOST_VALUES, Run, _read_stages, needed_stages
from cove.images.dockerfile_parser import Command, Heredoc
from cove.images.dockerfile_variables import MOST_EXPANDED, Unreplaceable, expand

_VARIABLES = {"A": "a", "B": "$A", "LONG": "x" * 1000, "EMPTY": ""}


def check(data: bytes) -> None:
    """Read it as a file, in the parser that a build has in a process of its own, and as a text with variables."""
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    try:
        made = expand(text, _VARIABLES)
    except Unreplaceable:
        pass
    else:
        assert len(made) <= len(text) + MOST_EXPANDED
    try:
        parsed = dockerfile.parse_string(text)
    except dockerfile.GoParseError:
        return
    commands = [
        Command(
            cmd=each.cmd,
            json=each.json,
            flags=each.flags,
            value=each.value,
            start_line=each.start_line,
            original=each.original,
            heredocs=tuple(Heredoc(name=document.name, content=document.content) for document in each.heredocs),
        )
        for each in parsed
    ]
    if any(not isinstance(each.cmd, str) for each in parsed):
        return  # refused when the answer of the parser's process is decoded
    try:
        stages = _read_stages(commands, {"ARGUMENT": "given"}, lambda _: {"PATH": "/bin"}, "Dockerfile")
        needed = needed_stages(stages, None)
    except ValidationFailed as error:
        assert "Dockerfile" in error.message
        return
    assert needed[-1] == len(stages) - 1
    words = [word for stage in stages for step in stage.steps if isinstance(step, Run) for word in step.words]
    assert sum(map(len, words)) <= len(text) * 2 + MOST_VALUES


def seeds() -> Iterator[bytes]:
    """Files with every instruction, variables and here-documents."""
    yield (
        b"ARG V=1\nFROM a:$V AS x\nENV A=b C='d' E=\"$A\"\nRUN echo ${"
        b"A:-x} ${B:+y}\nCOPY --from=x --chmod=755 a b /c/\n"
    )
    yield b'FROM a\nRUN <<EOF\necho a\nEOF\nFROM 0\nSHELL ["/bin/bash", "-c"]\nCMD ["a"]\nENTRYPOINT x\n'
    yield b"FROM scratch\nADD a.tar /\nWORKDIR /w\nUSER u\nEXPOSE 80/tcp\nLABEL a=b\nVOLUME /v\nHEALTHCHECK NONE\n"
    yield b"${A:-${B:+${C-x}}}\\$$"
