"""A shell's state as text: what bash prints about itself, and the script that makes another bash the same.

bash prints variables as `declare -flags NAME=value` with values in "..." or $'...', over several lines where the
value has newlines. Everything else it prints is already a script. What bash owns, and what is ours, is left out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cove.agent.protocol import ProtocolError

_OWNED = frozenset(
    [
        "BASH",
        "BASHOPTS",
        "BASHPID",
        "BASH_ALIASES",
        "BASH_ARGC",
        "BASH_ARGV",
        "BASH_ARGV0",
        "BASH_CMDS",
        "BASH_COMMAND",
        "BASH_EXECUTION_STRING",
        "BASH_LINENO",
        "BASH_LOADABLES_PATH",
        "BASH_REMATCH",
        "BASH_SOURCE",
        "BASH_SUBSHELL",
        "BASH_VERSINFO",
        "BASH_VERSION",
        "COMP_WORDBREAKS",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "LINENO",
        "OLDPWD",
        "PIPESTATUS",
        "PPID",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SRANDOM",
        "UID",
        "_",
    ]
)
_OURS = "__cove"
# What a fresh bash sets by itself, or `shopt -u compat31` does, and a session may have unset.
_BORN_WITH = "BASH_COMPAT HOSTNAME HOSTTYPE IFS MACHTYPE OPTERR OPTIND OSTYPE PATH PS4 SHELL SHLVL TERM"
# Assigning it switches the POSIX mode on, in which some functions cannot be defined.
_POSIX = "POSIXLY_CORRECT"
# What that mode switches on, and what changes how a script is read.
_LATE_OPTIONS = frozenset(["expand_aliases", "inherit_errexit", "shift_verbose"])
# With it an assignment among the arguments of `declare` is none of them.
_LAST_OPTIONS = frozenset(["keyword"])
_DECLARATION = re.compile(r"declare -([-aAcfilnrtux]+) ([A-Za-z_][A-Za-z0-9_]*)(=?)")
_FUNCTION = re.compile(r"^__cove_\w+ \(\) *$")
# Of a value: what ends no declaration and opens no list.
_QUIET = re.compile(
    r"""(?:[^"\\()$\n]++|"(?:[^"\\]++|\\.?)*+(?:"|\Z)|\$'(?:[^'\\]++|\\.?)*+(?:'|\Z)|\$(?!')|\\.?)*+""", re.DOTALL
)
_ATTRIBUTES = re.compile(r"declare (-f[rtx]*) (.+)")
_LIMIT = re.compile(r"-(\w)\) +(\w+)$")
_FIXED_OPTIONS = frozenset(["restricted_shell", "login_shell"])
_UNSAFE_OPTIONS = frozenset(["noexec", "onecmd", "interactive-comments"])
# In POSIX mode without the SIG.
_OUR_TRAP = (" SIGRTMAX-7", " RTMAX-7")
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Declaration:
    """One variable as bash prints it."""

    name: str
    flags: str
    value: str | None
    text: str


@dataclass(frozen=True, slots=True)
class ShellState:
    """Everything that makes up a session's shell."""

    cwd: str
    previous_cwd: str
    status: int
    parameters: tuple[str, ...]
    directories: tuple[str, ...]
    umask: str
    limits: tuple[tuple[str, str], ...]
    shopt: str
    options: str
    functions: str
    function_attributes: tuple[tuple[str, str], ...]
    variables: tuple[Declaration, ...]
    aliases: str
    traps: str

    @property
    def readonly_names(self) -> frozenset[str]:
        """Variables that nothing can change any more."""
        return frozenset(variable.name for variable in self.variables if "r" in variable.flags)

    def script(self, *, traps: bool, env: Mapping[str, str | None] | None = None, before_options: str = "") -> str:
        """What a fresh bash executes to become the same.

        Functions come late, because they may have the name of a builtin; then options, because they change how bash
        reads and executes; aliases are off until the end.
        """
        late = [variable.text for variable in self.variables if variable.name == _POSIX]
        parts = [
            "shopt -u expand_aliases",
            _without(self.shopt, _LATE_OPTIONS),
            f"unset -v {_BORN_WITH}",
            *[variable.text for variable in self.variables if variable.name != _POSIX],
            self.aliases,
            " ".join(["set --", *map(quote, self.parameters)]),
            f"umask {quote(self.umask)}",
            *[f"ulimit -S -{letter} {value} 2>/dev/null" for letter, value in self.limits],
            *_directories(self),
            *environment_lines(env or {}),
            *([self.traps] if traps else []),
            self.functions,
            *[f"\\builtin declare {flags} -- {quote(name)}" for flags, name in self.function_attributes],
            before_options,
            *_with_builtin([*_without(self.options, _LAST_OPTIONS).splitlines(), *late]),
            *_with_builtin([*_only(self.shopt, _LATE_OPTIONS), *_only(self.options, _LAST_OPTIONS)]),
        ]
        return "\n".join(parts) + "\n"


def _directories(state: ShellState) -> Iterator[str]:
    for directory in reversed(state.directories[1:]):
        yield f"\\builtin pushd -n {quote(directory)} >/dev/null"
    yield f"\\builtin cd -- {quote(state.cwd)} 2>/dev/null"
    yield f"OLDPWD={quote(state.previous_cwd)}" if state.previous_cwd else "unset -v OLDPWD"


def environment_lines(env: Mapping[str, str | None]) -> Iterator[str]:
    """Export and unset."""
    for name, value in env.items():
        yield f"\\builtin unset -v {name}" if value is None else f"\\builtin export {name}={quote(value)}"


def quote(text: str) -> str:
    """A word that bash reads as exactly this text."""
    return "'" + text.replace("'", "'\\''") + "'"


def parse_snapshot(data: bytes) -> ShellState:
    """The state from what `__cove_snapshot` wrote; ProtocolError when it is something else."""
    fields = iter(data.decode("utf-8", "surrogateescape").split("\0"))
    try:
        cwd, previous, status = next(fields), next(fields), int(next(fields))
        parameters = tuple(next(fields) for _ in range(int(next(fields))))
        directories = tuple(next(fields) for _ in range(int(next(fields))))
        umask, limits, shopt, options, functions, names, variables, aliases, traps = (next(fields) for _ in range(9))
    except (StopIteration, RuntimeError, ValueError):
        raise ProtocolError("the shell's snapshot is not complete") from None
    return ShellState(
        cwd=cwd,
        previous_cwd=previous,
        status=status,
        parameters=parameters,
        directories=directories,
        umask=umask.strip(),
        limits=tuple(_parse_limits(limits)),
        shopt=_without(shopt, _FIXED_OPTIONS),
        options=_without(options, _UNSAFE_OPTIONS),
        functions=_without_ours(functions, frozenset(names.splitlines())),
        function_attributes=tuple(_parse_attributes(names)),
        variables=tuple(_kept(parse_declarations(variables))),
        aliases=aliases,
        traps="\n".join(line for line in traps.split("\n") if not line.endswith(_OUR_TRAP)),
    )


def _parse_limits(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        found = _LIMIT.search(line)
        if found and found[1] not in "pR":
            yield found[1], found[2]


def _without(lines: str, names: frozenset[str]) -> str:
    return "\n".join(line for line in lines.splitlines() if line.rpartition(" ")[2] not in names)


def _only(lines: str, names: frozenset[str]) -> list[str]:
    return [line for line in lines.splitlines() if line.rpartition(" ")[2] in names]


def _with_builtin(lines: list[str]) -> Iterator[str]:
    return (f"\\builtin {line}" for line in lines)


def _parse_attributes(lines: str) -> Iterator[tuple[str, str]]:
    """The functions that are exported, read-only or traced, from what `declare -F` prints."""
    for line in lines.splitlines():
        found = _ATTRIBUTES.fullmatch(line)
        if found is None:
            raise ProtocolError(f"not a function: {line[:40]!r}")
        if found[1] != "-f" and not found[2].startswith(_OURS):
            yield found[1], found[2]


def _without_ours(functions: str, attributes: frozenset[str]) -> str:
    """The functions of the user, without the lines about attributes that bash prints after a function."""
    kept = []
    is_ours = False
    lines = functions.split("\n")
    for before, line in zip(["", *lines], lines, strict=False):
        if line in attributes and before.startswith("}"):
            continue
        is_ours = is_ours or _FUNCTION.match(line) is not None
        if not is_ours:
            kept.append(line)
        elif line == "}":
            is_ours = False
    return "\n".join(kept)


def _kept(declarations: Iterator[Declaration]) -> Iterator[Declaration]:
    return (each for each in declarations if each.name not in _OWNED and not each.name.startswith(_OURS))


def parse_exports(text: str) -> dict[str, str]:
    """The environment from what `export -p` prints; exported but unset variables are not in it."""
    found = {}
    for declaration in parse_declarations(text):
        if declaration.value is not None and "a" not in declaration.flags and "A" not in declaration.flags:
            found[declaration.name] = unquote(declaration.value)
    return found


def parse_declarations(text: str) -> Iterator[Declaration]:
    """Split what `declare -p` prints."""
    at = 0
    while at < len(text):
        head = _DECLARATION.match(text, at)
        if head is None:
            raise ProtocolError(f"not a declaration: {text[at : at + 40]!r}")
        end = _value_end(text, head.end())
        value = text[head.end() : end] if head[3] else None
        yield Declaration(head[2], head[1], value, text[at:end])
        at = end + 1


def _value_end(text: str, at: int) -> int:
    """The position of the newline that ends a declaration: outside quotes and parentheses."""
    depth = 0
    while (at := _QUIET.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing, too
        if text[at] == "\n" and depth <= 0:
            return at
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return len(text)


def unquote(value: str) -> str:
    """The text that bash printed as a "..." or $'...' word."""
    if value.startswith('"'):
        return re.sub(r"\\([\"\\$`])", r"\1", value[1:-1])
    if value.startswith("$'"):
        return _unescape(value[2:-1])
    return value


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        escape = found[1]
        if escape[0] in "01234567":
            return bytes([int(escape, 8) & 0xFF]).decode("utf-8", "surrogateescape")
        return _ESCAPES.get(escape, escape)

    plain = re.sub(r"\\([0-7]{1,3}|.)", replace, text, flags=re.DOTALL)
    # Neighbouring octal escapes may be the bytes of one character.
    return plain.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
