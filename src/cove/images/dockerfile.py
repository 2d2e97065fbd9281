"""Read a Dockerfile into stages of steps: a pure function of its instructions and of the build's arguments.

What is not supported is refused by name and line. HEALTHCHECK, STOPSIGNAL and VOLUME have no meaning here.
"""

import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cove.errors import ValidationFailed
from cove.images.dockerfile_parser import DEFAULT_NAME, Command, parse_commands
from cove.images.dockerfile_variables import Unreplaceable, expand

SCRATCH = "scratch"
DEFAULT_SHELL: tuple[str, ...] = ("/bin/sh", "-c")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_STEPS = 1000
MOST_WORDS = 20_000
MOST_VALUES = 4 << 20
_UNSUPPORTED = {
    "ONBUILD": "write its steps where they are needed",
    "MAINTAINER": "use LABEL",
}
_IGNORED = ("HEALTHCHECK", "STOPSIGNAL", "VOLUME")
_RUN_FLAGS = ("--network=default",)

EnvironmentOf = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command. `env` are the build's arguments, beside the image's variables."""

    line: int
    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files of the build's directory, of an earlier stage, or of another image."""

    line: int
    sources: tuple[str, ...]
    target: str
    stage: str | None
    mode: int | None
    owner: str | None
    unpacks: bool
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Set:
    """Change the configuration: `ENV`, `WORKDIR`, `USER`, `ENTRYPOINT`, `CMD`, `EXPOSE`, `LABEL`."""

    line: int
    name: str
    value: tuple[str, ...]
    source: str = field(default="", compare=False)


Step = Run | Copy | Set


@dataclass(slots=True)
class Stage:
    """One `FROM` and what follows it. `base` is an image, the name of an earlier stage, or `scratch`."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)


def _no_environment(_image: str) -> Mapping[str, str]:
    return {}


def parse_dockerfile(
    text: str,
    arguments: Mapping[str, str],
    environment_of: EnvironmentOf = _no_environment,
    name: str = DEFAULT_NAME,
) -> list[Stage]:
    """Read the stages of a file, which errors call by that name; ValidationFailed names the line. Blocks.

    `environment_of` an image are its variables, which a stage begins with.
    """
    return _read_stages(parse_commands(text, name), arguments, environment_of, name)


def _read_stages(
    commands: Sequence[Command], arguments: Mapping[str, str], environment_of: EnvironmentOf, name: str
) -> list[Stage]:
    """Give every instruction its meaning."""
    if len(commands) > MOST_STEPS:
        raise ValidationFailed(f"{name} has {len(commands)} steps; {MOST_STEPS} is the most")
    if sum(len(command.value) for command in commands) > MOST_WORDS:
        raise ValidationFailed(f"{name} has more than {MOST_WORDS} values")
    reader = _Reader(arguments, environment_of)
    for command in commands:
        reader.read(command)
    if not reader.stages:
        raise ValidationFailed(f"{name} has no FROM")
    return reader.stages


def find_stage(stages: Sequence[Stage], name: str, before: int) -> int | None:
    """Return which of the stages before one has that name or number; None where it is the name of an image."""
    wanted = name.lower()
    named = [at for at in range(before) if stages[at].name == wanted]
    if named:
        return named[-1]
    return next((at for at in range(before) if str(at) == wanted), None)


def needed_stages(stages: Sequence[Stage], target: str | None, name: str = DEFAULT_NAME) -> list[int]:
    """Return the stages that a target, or the last stage, needs, in order."""
    last = len(stages) - 1 if target is None else find_stage(stages, target, len(stages))
    if last is None:
        raise ValidationFailed(f"{name} has no stage {target!r}")
    needed: set[int] = set()
    pending = [last]
    while pending:
        at = pending.pop()
        if at not in needed:
            needed.add(at)
            wanted = [
                stages[at].base,
                *(step.stage for step in stages[at].steps if isinstance(step, Copy) and step.stage),
            ]
            pending += [found for each in wanted if (found := find_stage(stages, each, at)) is not None]
    return sorted(needed)


class _Reader:
    """The state between instructions: variables of the stage that is being read."""

    def __init__(self, arguments: Mapping[str, str], environment_of: EnvironmentOf) -> None:
        self._given = dict(arguments)
        self._environment_of = environment_of
        self._environments: dict[str, dict[str, str]] = {}
        self._before_first: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._env: dict[str, str] = {}
        self._shell = DEFAULT_SHELL
        self._shells: dict[str, tuple[str, ...]] = {}
        self._left = MOST_VALUES
        self.stages: list[Stage] = []

    def read(self, command: Command) -> None:
        name = command.cmd.upper()
        if name in _UNSUPPORTED:
            raise _wrong(command, f"{name} is not supported: {_UNSUPPORTED[name]}")
        if name in _IGNORED:
            return
        handler = _HANDLERS.get(name)
        if handler is None:
            raise _wrong(command, f"{name} is no instruction")
        if command.json and "\\u0000" in command.original:  # where the parser cuts a value off
            raise _wrong(command, f"{name} with a NUL byte")
        if not self.stages and name not in ("FROM", "ARG"):
            raise _wrong(command, f"{name} before the first FROM")
        try:
            handler(self, command)
        except Unreplaceable as error:
            raise _wrong(command, str(error)) from None

    def read_from(self, command: Command) -> None:
        words = [self._replace(word, self._before_first) for word in command.value]
        if command.flags:
            raise _wrong(command, f"FROM {command.flags[0]} is not supported")
        if len(words) == 3 and words[1].upper() == "AS":
            name = words[2].lower()
        elif len(words) == 1:
            name = str(len(self.stages))
        else:
            raise _wrong(command, "FROM takes an image, and AS with a name")
        if not words[0]:
            raise _wrong(command, "FROM an empty name: give the ARG that it uses")
        self._begin(Stage(name, words[0]))

    def _begin(self, stage: Stage) -> None:
        base = self._environments.get(stage.base.lower())
        if base is None:
            base = {} if stage.base == SCRATCH else dict(self._environment_of(stage.base))
        self._arguments, self._env = {}, {"PATH": DEFAULT_PATH, **base}
        self._environments[stage.name] = self._env
        self._shell = self._shells.get(stage.base.lower(), DEFAULT_SHELL)
        self._shells[stage.name] = self._shell
        self.stages.append(stage)

    def read_arg(self, command: Command) -> None:
        for word in command.value:
            name, equals, default = word.partition("=")
            value = self._given.get(name, self._value(default) if equals else None)
            known = self._arguments if self.stages else self._before_first
            if value is None:
                value = self._before_first.get(name)
            if value is not None:
                known[name] = value

    def read_env(self, command: Command) -> None:
        pairs = list(zip(command.value[::2], command.value[1::2], strict=True))
        expanded = {name: self._value(value) for name, value in pairs}
        self._env.update(expanded)
        self._set(command, "ENV", *(f"{name}={value}" for name, value in expanded.items()))

    def read_label(self, command: Command) -> None:
        pairs = zip(command.value[::2], command.value[1::2], strict=True)
        self._set(command, "LABEL", *(f"{_unquote(name)}={self._value(value)}" for name, value in pairs))

    def read_run(self, command: Command) -> None:
        for flag in command.flags:
            if flag not in _RUN_FLAGS:
                raise _wrong(command, f"RUN {flag} is not supported")
        words = command.value if command.json else (*self._shell, _with_heredocs(command))
        env = tuple((name, value) for name, value in self._arguments.items() if name not in self._env)
        self.stages[-1].steps.append(Run(command.start_line, tuple(words), env, command.original))

    def read_copy(self, command: Command, *, unpacks: bool = False) -> None:
        flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in command.flags)
        unknown = set(flags) - {"from", "chown", "chmod", "link"}
        if unknown:
            raise _wrong(command, f"{command.cmd} --{min(unknown)} is not supported")
        words = [self._expand(word if command.json else _unquote(word)) for word in command.value]
        if command.heredocs:
            raise _wrong(command, f"{command.cmd} of a here-document is not supported")
        if len(words) < 2:
            raise _wrong(command, f"{command.cmd} takes a source and a target")
        if any(word.startswith(("http://", "https://", "git@")) for word in words[:-1]):
            raise _wrong(command, "ADD of a URL is not supported: RUN curl")
        self.stages[-1].steps.append(
            Copy(
                line=command.start_line,
                sources=tuple(words[:-1]),
                target=words[-1],
                stage=flags.get("from"),
                mode=_mode(command, flags.get("chmod")),
                owner=flags.get("chown"),
                unpacks=unpacks,
                source=command.original,
            )
        )

    def read_add(self, command: Command) -> None:
        self.read_copy(command, unpacks=True)

    def read_workdir(self, command: Command) -> None:
        self._set(command, "WORKDIR", self._expand(_first(command)))

    def read_user(self, command: Command) -> None:
        self._set(command, "USER", self._expand(_first(command)))

    def read_expose(self, command: Command) -> None:
        self._set(command, "EXPOSE", *(self._expand(word) for word in command.value))

    def read_entrypoint(self, command: Command) -> None:
        self._set(command, "ENTRYPOINT", *self._words(command))

    def read_cmd(self, command: Command) -> None:
        self._set(command, "CMD", *self._words(command))

    def read_shell(self, command: Command) -> None:
        if not command.json or not command.value:
            raise _wrong(command, 'SHELL takes a list: ["/bin/bash", "-c"]')
        self._shell = self._shells[self.stages[-1].name] = command.value

    def _set(self, command: Command, name: str, *value: str) -> None:
        self.stages[-1].steps.append(Set(command.start_line, name, value, command.original))

    def _words(self, command: Command) -> tuple[str, ...]:
        """Return the words of CMD and ENTRYPOINT; a line is one for the shell, as Docker has it."""
        return command.value if command.json else (*self._shell, " ".join(command.value))

    def _value(self, text: str) -> str:
        """Remove quotes and replace variables; within single quotes there are none."""
        is_plain = len(text) > 1 and text[0] == text[-1] == "'"
        return text[1:-1] if is_plain else self._expand(_unquote(text))

    def _expand(self, text: str) -> str:
        return self._replace(text, ChainMap(self._env, self._arguments) if self.stages else self._before_first)

    def _replace(self, text: str, variables: Mapping[str, str]) -> str:
        """Replace variables; what comes of all texts of a file is bounded, as each is."""
        value = expand(text, variables)
        self._left -= len(value)
        if self._left < 0:
            raise Unreplaceable(f"the values have more than {MOST_VALUES} characters when variables are replaced")
        if "\0" in value:
            raise Unreplaceable("a value with a NUL byte")
        return value


_HANDLERS: Mapping[str, Callable[[_Reader, Command], None]] = {
    "FROM": _Reader.read_from,
    "ARG": _Reader.read_arg,
    "ENV": _Reader.read_env,
    "LABEL": _Reader.read_label,
    "RUN": _Reader.read_run,
    "COPY": _Reader.read_copy,
    "ADD": _Reader.read_add,
    "WORKDIR": _Reader.read_workdir,
    "USER": _Reader.read_user,
    "EXPOSE": _Reader.read_expose,
    "ENTRYPOINT": _Reader.read_entrypoint,
    "CMD": _Reader.read_cmd,
    "SHELL": _Reader.read_shell,
}


def _with_heredocs(command: Command) -> str:
    """Return the shell's text: a here-document alone is the script itself."""
    text = " ".join(command.value)
    if not command.heredocs:
        return text
    if re.fullmatch(r"<<-?['\"]?\w+['\"]?", text.strip()):
        return command.heredocs[0].content
    documents = "".join(f"{document.content}{document.name}\n" for document in command.heredocs)
    return f"{text}\n{documents}"


def _unquote(text: str) -> str:
    """Remove quotes as the parser leaves them around values."""
    if not any(mark in text for mark in "\"'"):
        return text
    try:
        return "".join(shlex.split(text, posix=True)) if text[:1] not in "'\"" or text[-1:] != text[:1] else text[1:-1]
    except ValueError:
        return text


def _first(command: Command) -> str:
    if not command.value:
        raise _wrong(command, f"{command.cmd} takes a value")
    return command.value[0]


def _mode(command: Command, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 8) & 0o777
    except ValueError:
        raise _wrong(command, f"--chmod={text} is no octal mode") from None


def _wrong(command: Command, what: str) -> ValidationFailed:
    return ValidationFailed(f"{command.file}, line {command.start_line}: {what}")
