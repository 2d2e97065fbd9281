"""Restore a session's shell: write the script by which a fresh bash becomes the same, from a snapshot of the old one.

Theory of operation. A snapshot is what a shell wrote about itself (`__cove_snapshot` in shell/session.bash): fields
ended by NUL, each the output of a builtin that prints state (`declare -p`, `declare -f`, `shopt -p`, `set +o`,
`ulimit -Sa`, `alias -p`, `trap -p`). A fresh bash reads the script made here as its startup file (BASH_ENV, descriptor
62). It is used for three things: to replace a shell that did not survive an interruption, with its traps and `$?`; to
make a copy of a session, without traps; and to start a process from a session's state, without traps and with the
caller's own changes from descriptor 61.

The snapshot is untrusted: code inside can forge it. So the runtime keeps it as opaque bytes in a sealed memfd, and it
is parsed here, by a launcher inside the sandbox. A forged one costs the sandbox's own CPU time and becomes a script
that runs with the sandbox's own rights, which its author could have run anyway.

Only `declare -p` has to be parsed, because variables that bash owns and those of the session must be left out. bash
prints `declare -flags NAME=value` with the value in "..." or $'...', or a list of such in parentheses. A value may
hold line breaks, and lines that look like declarations: so the parser goes from quote to quote, never from line to
line, in time linear in the text. Whatever is not what bash prints raises BadSnapshot, and the spawn is refused. All
other fields are scripts already, and are filtered by lines.

The order of the script is the hard part, since each line runs in the state that the lines before it have made:

 1. aliases are off, so that an alias called `declare` means nothing yet; options that do not change how bash reads;
 2. what a fresh bash is born with (IFS, PS4, …) is unset, because the session may have unset it;
 3. variables, but not POSIXLY_CORRECT, whose assignment switches a mode on in which some functions cannot be defined;
 4. aliases, positional parameters, umask, limits, the directory stack;
 5. `$?` and the traps of a session, or the changes that a process has of its own;
 6. functions, late because they may have the name of a builtin: every line after them begins with `\\builtin`;
 7. `set` options (errexit, nounset, …), late because a line that fails must not end the shell;
 8. the POSIX mode, and options that it switches on as a side effect;
 9. last, what changes how a script is read or shown: `keyword`, `verbose`, `xtrace`.

What can go wrong, and why it does not:

- With `noexec` the new shell would execute nothing, with `onecmd` one command. They are left out (UNSAFE_OPTIONS).
- A limit may no longer be allowed: that line fails silently. Where the directory is gone, it is /workspace.
- RLIMIT_LOCKS is the label of a command (session.bash), not state: it is never restored (FIXED_LIMITS).
- Functions, variables and the trap of the session itself (`__cove_*`, RTMAX-7) are left out: the new shell has its own
  from session.bash, and those are read-only.
- A function body may hold a line that looks like an attribute line, such as `declare -fx name`. Such a line is dropped
  only directly behind a closing brace, where bash itself prints it.
- A snapshot without end: the runtime bounds its size to 16 MiB, this module its number of fields.
"""

from __future__ import annotations

from cove.agent import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

MOST_FIELDS = 1 << 20

OWNED = frozenset(
    b"BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_EXECUTION_STRING "
    b"BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO BASH_VERSION "
    b"COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO OLDPWD PIPESTATUS PPID "
    b"PWD RANDOM SECONDS SHELLOPTS SRANDOM UID _".split()
)
OURS = b"__cove"
# Variables that a fresh bash sets by itself or has from us, or `shopt -u compat31` sets, and a session may have unset.
BORN_WITH = b"BASH_COMPAT BASH_ENV HOSTNAME HOSTTYPE IFS MACHTYPE OPTERR OPTIND OSTYPE PATH PS4 SHELL SHLVL TERM"
# Assigning it switches the POSIX mode on, in which some functions cannot be defined.
POSIX = b"POSIXLY_CORRECT"
# Options that this mode switches on, and those that change how a script is read.
LATE_OPTIONS = frozenset([b"expand_aliases", b"inherit_errexit", b"shift_verbose"])
# With the first an assignment among the arguments of `declare` is none of them; the others show what is executed.
LAST_OPTIONS = (b"keyword", b"verbose", b"xtrace")
FIXED_OPTIONS = frozenset([b"restricted_shell", b"login_shell"])
UNSAFE_OPTIONS = frozenset([b"noexec", b"onecmd", b"interactive-comments"])
# `p` cannot be set, `R` is odd, and `x` is where a command's processes have its number: see session.bash.
FIXED_LIMITS = b"pRx"
# In POSIX mode without the SIG.
OUR_TRAP = (b" SIGRTMAX-7", b" RTMAX-7")
# Changes of the process itself, which the runtime gives it by this descriptor.
OWN = b"\\builtin . /dev/fd/61"
FLAGS = frozenset(b"-aAcfilnrtux")


class BadSnapshot(Exception):
    """A snapshot that no shell writes."""


def script(data: bytes, kind: bytes) -> bytes:
    """Write the script by which a fresh bash becomes the same: a session's shell, or without traps a copy or a process.

    Functions come late, because they may have the name of a builtin; then options, because they change how bash
    reads and executes; aliases are off until the end. What a process has of its own is executed in between.
    """
    if data.count(b"\0") > MOST_FIELDS:
        raise BadSnapshot("more fields than a shell writes")
    fields = iter(data.split(b"\0"))
    try:
        cwd, previous, status = next(fields), next(fields), int(next(fields))
        parameters = [next(fields) for _ in range(int(next(fields)))]
        directories = [next(fields) for _ in range(int(next(fields)))]
        umask, limits, shopt, options, functions, names, variables, aliases, trapped = [next(fields) for _ in range(9)]
    except (StopIteration, RuntimeError, ValueError):
        raise BadSnapshot("not complete") from None
    kept = [each for each in declarations(variables) if each[0] not in OWNED and not each[0].startswith(OURS)]
    settings = without(options, UNSAFE_OPTIONS)
    flags = without(shopt, FIXED_OPTIONS)
    lines = [
        b"exec 62<&-",
        b"shopt -u expand_aliases",
        without(flags, LATE_OPTIONS),
        b"unset -v " + BORN_WITH,
        *[text for name, text in kept if name != POSIX],
        aliases,
        b" ".join([b"set --", *map(quote, parameters)]),
        b"umask " + quote(umask.strip()),
        *limit_lines(limits),
        *directory_lines(cwd, previous, directories),
        OWN if kind == protocol.PROCESS else b"__cove_last=%d" % status,
        without_our_trap(trapped) if kind == protocol.SESSION else b"",
        without_ours(functions, frozenset(names.splitlines())),
        *attribute_lines(names),
        *with_builtin(without(settings, LAST_OPTIONS).splitlines()),
        *with_builtin([text for name, text in kept if name == POSIX]),
        *with_builtin([line for line in flags.splitlines() if last_word(line) in LATE_OPTIONS]),
        *with_builtin([line for name in LAST_OPTIONS for line in settings.splitlines() if last_word(line) == name]),
    ]
    return b"\n".join(lines) + b"\n"


def declarations(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Split what `declare -p` prints: each variable's name and the whole of its declaration."""
    at = 0
    while at < len(text):
        flags = text.find(b" ", at + 9)
        line = text.find(b"\n", at)
        line = len(text) if line < 0 else line
        equals = text.find(b"=", flags, line)
        name = text[flags + 1 : line if equals < 0 else equals]
        if (
            text[at : at + 9] != b"declare -"
            or flags < 0
            or not is_name(name)
            or not FLAGS.issuperset(text[at + 8 : flags])
        ):
            raise BadSnapshot("not a declaration: %r" % text[at : at + 40])
        end = line if equals < 0 else value_end(text, equals + 1)
        if text[end : end + 1] not in (b"\n", b""):
            raise BadSnapshot("not the end of a declaration: %r" % text[end : end + 40])
        yield name, text[at:end]
        at = end + 1


def is_name(name: bytes) -> bool:
    """Return whether bash can have a variable of that name."""
    return name.replace(b"_", b"a").isalnum() and not name[:1].isdigit()


def value_end(text: bytes, at: int) -> int:
    """Find where a value that begins here ends: a word, or a list of words with keys in parentheses."""
    if text[at : at + 1] != b"(":
        return word_end(text, at, b"\n", b"\n")
    at += 1
    while True:
        while text[at : at + 1] == b" ":
            at += 1
        if text[at : at + 1] == b")":
            return at + 1
        if text[at : at + 1] == b"[":
            at = word_end(text, at + 1, b"]", b"]") + 2
        if at >= len(text):
            raise BadSnapshot("a list without an end")
        at = word_end(text, at, b" ", b")")


def word_end(text: bytes, at: int, before: bytes, otherwise: bytes) -> int:
    """Find where a quoted word ends; one that is not quoted ends before whichever of two bytes comes first."""
    if text[at : at + 1] == b'"':
        return quoted_end(text, at + 1, b'"')
    if text[at : at + 2] == b"$'":
        return quoted_end(text, at + 2, b"'")
    end = text.find(before, at)
    other = text.find(otherwise, at, len(text) if end < 0 else end)
    found = end if other < 0 else other
    return len(text) if found < 0 else found


def quoted_end(text: bytes, at: int, mark: bytes) -> int:
    """Find where a quote that is open here ends, in time linear in its length."""
    end = text.find(mark, at)
    while end >= 0:
        escape = text.find(b"\\", at, end)
        if escape < 0:
            return end + 1
        at = escape + 2
        if at > end:
            end = text.find(mark, at)
    raise BadSnapshot("a quote without an end")


def limit_lines(text: bytes) -> Iterator[bytes]:
    """Soft limits, from lines such as `open files  (-n) 1024`."""
    for line in text.splitlines():
        letter, closed, value = line.rpartition(b"-")[2].partition(b")")
        value = value.strip()
        if closed and len(letter) == 1 and letter not in FIXED_LIMITS and value.isalnum():
            yield b"ulimit -S -%s %s 2>/dev/null" % (letter, value)


def directory_lines(cwd: bytes, previous: bytes, directories: list[bytes]) -> Iterator[bytes]:
    """Yield the stack of directories, of which the first is the current one."""
    for directory in reversed(directories[1:]):
        yield b"\\builtin pushd -n %s >/dev/null" % quote(directory)
    yield b"\\builtin cd -- %s 2>/dev/null || \\builtin cd /workspace 2>/dev/null" % quote(cwd)
    yield b"OLDPWD=" + quote(previous) if previous else b"unset -v OLDPWD"


def attribute_lines(names: bytes) -> Iterator[bytes]:
    """Yield the functions that are exported, read-only or traced, from what `declare -F` prints."""
    for line in names.splitlines():
        flags, _, name = line[len(b"declare ") :].partition(b" ")
        if not line.startswith(b"declare -f") or not name:
            raise BadSnapshot("not a function: %r" % line[:40])
        if flags != b"-f" and not name.startswith(OURS):
            yield b"\\builtin declare %s -- %s" % (flags, quote(name))


def without_ours(functions: bytes, attributes: frozenset[bytes]) -> bytes:
    """Return the functions of the user, without the lines about attributes that bash prints after a function."""
    kept = []
    is_ours = False
    before = b""
    for line in functions.split(b"\n"):
        if not (line in attributes and before.startswith(b"}")):
            is_ours = is_ours or (line.startswith(b"__cove_") and line.rstrip(b" ").endswith(b" ()"))
            if not is_ours:
                kept.append(line)
            elif line == b"}":
                is_ours = False
        before = line
    return b"\n".join(kept)


def without_our_trap(lines: bytes) -> bytes:
    """Drop the session's own trap from what `trap -p` prints."""
    return b"\n".join([line for line in lines.split(b"\n") if not line.endswith(OUR_TRAP)])


def quote(text: bytes) -> bytes:
    """Return a word that bash reads as exactly this text."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def last_word(line: bytes) -> bytes:
    """Return the option that a line is about."""
    return line.rpartition(b" ")[2]


def without(lines: bytes, names: Container[bytes]) -> bytes:
    """Return the lines about all options but these."""
    return b"\n".join([line for line in lines.splitlines() if last_word(line) not in names])


def with_builtin(lines: list[bytes]) -> list[bytes]:
    """Lines that call a builtin also where a function or an alias has its name."""
    return [b"\\builtin " + line for line in lines]
