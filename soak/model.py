"""What must be true of a shell, of a process's output and of a terminal's, as pure decisions."""

from dataclasses import dataclass, field

from soak.possible import Possible, Violation

_MOST_REMEMBERED = 64


_State = tuple[Possible[str], dict[str, Possible[str | None]]]


@dataclass
class ShellModel:
    """The state of a session's shell. A variable that is not set is None; a function is a variable by another name.

    A replaced shell is as it was after some command, so the states after the last commands are kept by command.
    """

    cwd: Possible[str]
    variables: dict[str, Possible[str | None]] = field(default_factory=dict)
    _states: dict[str | None, _State] = field(default_factory=dict)
    _last: list[str | None] = field(default_factory=lambda: [None])

    def __post_init__(self) -> None:
        self._states[None] = self._copy()

    def variable(self, name: str) -> Possible[str | None]:
        """One variable, unset at first."""
        return self.variables.setdefault(name, Possible[str | None](None))

    @property
    def is_certain(self) -> bool:
        """Whether the whole state is known."""
        return self.cwd.is_certain and all(value.is_certain for value in self.variables.values())

    def completed(self, command: str) -> None:
        """The command was answered, and the state has been brought up to date."""
        self._last = [command]
        self._states[command] = self._copy()
        for old in list(self._states)[1:-_MOST_REMEMBERED]:
            del self._states[old]

    def unanswered(self, command: str) -> None:
        """The command may have run, and may be the last one that did."""
        self._last.append(command)
        self._states[command] = self._copy()

    def disturbed(self) -> None:
        """The state may have changed since the last command: a snapshot of after that one has it, or not."""
        for command in self._last:
            cwd, variables = self._states[command]
            cwd.may_become(*self.cwd.values)
            for name, value in self.variables.items():
                variables.setdefault(name, Possible[str | None](None)).may_become(*value.values)

    def set_since(self, name: str, value: str | None) -> None:
        """A variable was set, perhaps in a shell that had been replaced before: by one as after whatever command."""
        for _, variables in self._states.values():
            variables.setdefault(name, Possible[str | None](None)).may_become(value)

    def entered_since(self, directory: str) -> None:
        """The same of the directory."""
        for cwd, _ in self._states.values():
            cwd.may_become(directory)

    def restore(self, command: str | None) -> None:
        """The shell was replaced by one as after that command."""
        if command not in self._states:
            raise Violation(f"the shell was restored as after {command!r}, which was not run, or long ago")
        cwd, variables = self._states[command]
        self._last = [command]
        self.cwd = cwd.copy()
        self.variables = {
            name: variables[name].copy() if name in variables else Possible[str | None](None) for name in self.variables
        }

    def _copy(self) -> _State:
        return self.cwd.copy(), {name: value.copy() for name, value in self.variables.items()}


@dataclass
class OutputModel:
    """The bytes that a process prints, as far as they were seen.

    `expected` is all of it. One that was ended early may have printed any beginning of it; what was seen once, or
    after the end, is then all that may ever be seen.
    """

    expected: bytes
    is_cut: bool = False
    _seen: int = 0
    _final: int | None = None

    def observe(self, start: int, data: bytes, *, is_end: bool) -> None:
        """Somebody read this from that offset on; `is_end` says that the process had ended there."""
        end = start + len(data)
        if data != self.expected[start:end]:
            raise Violation(f"output from byte {start} on is {_difference(data, self.expected[start:])}")
        if self._final is not None and (end > self._final or (is_end and end != self._final)):
            raise Violation(f"output of an ended process ends at byte {end}, and ended at {self._final} before")
        self._seen = max(self._seen, end)
        if is_end:
            self._finish(end)

    def _finish(self, end: int) -> None:
        if end < self._seen:
            raise Violation(f"output ends at byte {end}, although {self._seen} were seen before")
        if end != len(self.expected) and not self.is_cut:
            raise Violation(f"output ends at byte {end} of {len(self.expected)}")
        self._final = end


@dataclass
class TypedModel:
    """What a program that echoes has shown: everything typed, in order; what was typed uncertainly may be missing.

    Each piece is different from all others and none contains another, so that there is one way to read an output.
    """

    greeting: bytes
    _pieces: list[tuple[bytes, bool]] = field(default_factory=list)

    def type(self, piece: bytes, *, is_certain: bool) -> None:
        """It was typed, or may have been."""
        self._pieces.append((piece, is_certain))

    def is_complete(self, shown: bytes) -> bool:
        """Whether everything that must come has come."""
        return shown.startswith(self.greeting) and all(piece in shown for piece, must in self._pieces if must)

    def observe(self, shown: bytes) -> None:
        """Everything from the beginning on, after all that must come has come."""
        if not shown.startswith(self.greeting):
            raise Violation(f"the terminal shows {shown[:80]!r}, and must begin with {self.greeting!r}")
        rest, seen, missing = shown[len(self.greeting) :], [], list(self._pieces)
        while rest:
            at = next((at for at, (piece, _) in enumerate(missing) if rest.startswith(piece)), None)
            if at is None and any(piece.startswith(rest) for piece, _ in missing):
                break  # the rest of this piece is on its way
            if at is None or any(must for _, must in missing[:at]):
                raise Violation(f"the terminal shows {rest[:80]!r} where {missing[:3]!r} must come")
            seen.append((missing[at][0], True))
            rest = rest[len(missing[at][0]) :]
            del missing[at]
        if any(must for _, must in missing):
            raise Violation(f"the terminal does not show {[piece for piece, must in missing if must][:3]!r}")
        self._pieces = [*seen, *missing]


def check(subject: str, is_true: bool, found: object = "") -> None:
    """One thing that must be true."""
    if not is_true:
        raise Violation(f"{subject}: {found!r}")


def _difference(data: bytes, expected: bytes) -> str:
    at = next((at for at, (one, other) in enumerate(zip(data, expected, strict=False)) if one != other), len(expected))
    return f"{data[at : at + 60]!r} at {at}, and must be {expected[at : at + 60]!r} ({len(data)} bytes)"
