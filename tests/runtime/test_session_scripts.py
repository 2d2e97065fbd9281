"""Random scripts, command by command in a session, against bash on the whole script."""

import random
import re

import pytest

from cove import AsyncSandbox, SessionTerminated

pytestmark = pytest.mark.anyio

END = (
    'echo "--- $? ${-//[cs]/}"; set +eu; trap -p EXIT USR1 ERR; trap - ERR; pwd; umask; '
    'shopt -p | grep -v expand_aliases; echo "$# $*"; declare -p v0 v1 v2 v3 n0 a0 a1 m0 m1 2>&1; '
    "declare -f f0 f1 f2; dirs -l"
)


class Script:
    """Commands from a seed; most of them are correct."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def commands(self) -> list[str]:
        first = self.pick("set -e", "set -u", "set -eE -o pipefail", "trap 'echo err $?' ERR", "", "", "", "")
        return [first, *(self.command() for _ in range(self.random.randint(3, 12)))]

    def command(self) -> str:
        makers = [
            self.assign,
            self.array,
            self.map,
            self.function,
            self.call,
            self.loop,
            self.directory,
            self.pipe,
            self.subshell,
            self.document,
            self.option,
            self.redirect,
            self.arithmetic,
            self.case,
            self.trap,
            self.status,
            self.conditional,
            self.parameters,
            self.show,
        ]
        made = [self.random.choice(makers)() for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
        return self.random.choice(["\n", "\n", "\n# comment\n"]).join(made)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def word(self) -> str:
        return self.pick(
            "1", "7", "a", "'b c'", '"$v0"', "$((3 * 4))", "${v1:-none}", "x*y", "'$v'", "ü", "$'t\\tt'", '""'
        )

    def variable(self) -> str:
        return f"v{self.random.randrange(4)}"

    def assign(self) -> str:
        name = self.variable()
        return self.pick(
            f"{name}={self.word()}",
            f"export {name}={self.word()}",
            f"{name}+={self.word()}",
            f"declare -i n0={self.random.randrange(50)}; n0+=1; echo $n0",
            f"declare -u {name}={self.word()}",
            f"unset {name}",
            f"{name}=$(echo {self.word()})",
        )

    def array(self) -> str:
        name = self.pick("a0", "a1")
        return self.pick(
            f"{name}=({self.word()} {self.word()})",
            f"{name}+=({self.word()})",
            f"{name}[3]={self.word()}",
            f'echo "${{{name}[@]}}" ${{#{name}[@]}}',
            f"unset '{name}[0]'",
        )

    def map(self) -> str:
        name = self.pick("m0", "m1")
        return f"declare -A {name}; {name}[{self.pick('k', 'l', 'x')}]={self.word()}; echo ${{#{name}[@]}}"

    def function(self) -> str:
        name = f"f{self.random.randrange(3)}"
        body = self.pick(
            "echo in $1 $#",
            "local v0=local; echo $v0; return 3",
            "v1=changed",
            "cat <<E\nfrom $1\nE",
            "for i in 1 2; do echo $i; [ $i = 1 ] && return 2; done",
            'echo "${FUNCNAME[0]}"; false',
        )
        return f"{name}() {{ {body}\n}}"

    def call(self) -> str:
        return f"f{self.random.randrange(3)} {self.word()} {self.word()}"

    def loop(self) -> str:
        body = self.pick("echo $i", "v0+=$i", "[ $i = 2 ] && break", "[ $i = 1 ] && continue; echo $i", "(exit $i)")
        return self.pick(
            f"for i in 1 2 3; do {body}; done",
            f"i=0; while [ $i -lt 3 ]; do i=$((i + 1)); {body}; done",
            f"for ((i = 0; i < 3; i++)); do {body}; done",
            f"for i in 1 2; do for j in 1 2; do {body}; continue 2; done; done",
        )

    def directory(self) -> str:
        return self.pick("cd /tmp", "cd /usr", "cd -", "cd /nonexistent", "pushd /etc", "popd", "cd", "pwd")

    def pipe(self) -> str:
        return self.pick(
            "printf '%s\\n' c a b | sort | head -2",
            "echo x | { read v2; echo $v2; }",
            "false | true; echo ${PIPESTATUS[@]}",
            "yes | head -3",
            "! true | false",
        )

    def subshell(self) -> str:
        return self.pick(
            "(cd /; v0=sub; pwd)", "(exit 5)", "v3=$(cd /; pwd; exit 4)", "(set -e; false; echo no); echo $?"
        )

    def document(self) -> str:
        return self.pick(
            "cat <<E\n$v0 text\nE",
            "cat <<'E'\n$v0 text\nE",
            "cat <<-E\n\ttabbed\n\tE",
            "read -r v0 v1 <<< 'one two three'",
            "while read -r line; do echo got $line; done <<E\na\nb\nE",
        )

    def option(self) -> str:
        return self.pick(
            "set -f",
            "set +f",
            "set -u",
            "set +u",
            "set -C",
            "set +C",
            "set -o pipefail",
            "set +o pipefail",
            "shopt -s nullglob",
            "shopt -s extglob",
            "shopt -u extglob",
            "umask 027",
            "umask 022",
            "set -e",
            "set +e",
        )

    def redirect(self) -> str:
        return self.pick(
            "echo out > /tmp/o.$$; cat /tmp/o.$$; rm -f /tmp/o.$$",
            "echo err >&2",
            "{ echo a; echo b >&2; } 2>&1",
            "exec 5> /tmp/five; echo five >&5; exec 5>&-; cat /tmp/five; rm -f /tmp/five",
            "cat < /nonexistent",
            "ls /nonexistent 2>/dev/null",
        )

    def arithmetic(self) -> str:
        return self.pick("echo $((7 % 3))", "((v3 = 4 * 5)); echo $v3", "((0))", "let v3=2+3", "echo $((1 ? 2 : 3))")

    def case(self) -> str:
        return f"case {self.word()} in a|b*) echo first;; [0-9]) echo digit;; *) echo other;; esac"

    def trap(self) -> str:
        return self.pick(
            "trap 'echo usr1 $v0' USR1",
            "kill -USR1 $$ 2>/dev/null; trap - USR1"
            if self.random.random() < 0.1
            else "trap 'echo usr1' USR1; kill -USR1 $$",
            "trap 'echo err $?' ERR",
            "trap - ERR",
        )

    def status(self) -> str:
        return self.pick(
            "false", "true", "echo $?", "nope-not-there", "(exit 42)", "test -d /tmp", "[[ a == b ]]", "return 2"
        )

    def conditional(self) -> str:
        return self.pick(
            "false && true",
            "false || echo rescued",
            "if false; then echo no; else echo else; fi",
            "[ -e /nonexistent ] && echo no",
            "! false",
            "true && false || true",
            "if ! test -d /tmp; then echo no; fi",
        )

    def parameters(self) -> str:
        return self.pick("set -- a 'b c' d", 'echo "$#" "$@"', "shift", "set --")

    def show(self) -> str:
        return f'echo "${{{self.variable()}-unset}}" $?'


def normalised(text: bytes) -> str:
    """Without what says where in which file: the session numbers the lines of each command."""
    lines = text.decode("utf-8", "replace")
    lines = re.sub(r"^(/tmp/script|bash|main|environment): (eval: )?(line \d+: )?", "", lines, flags=re.MULTILINE)
    return re.sub(r"line \d+", "line N", lines)


async def run_whole(sandbox: AsyncSandbox, commands: list[str]) -> tuple[str, str, int]:
    """bash on the whole script."""
    await sandbox.exec("cat > /tmp/script", stdin="shopt -s expand_aliases\n" + "\n".join([*commands, END]) + "\n")
    result = await sandbox.exec("exec -a bash bash < /tmp/script", stdin=None)
    return normalised(result.stdout_bytes), normalised(result.stderr_bytes), result.exit_code or 0


async def run_in_pieces(sandbox: AsyncSandbox, commands: list[str]) -> tuple[str, str, int]:
    session = await sandbox.create_session()
    out, err, code = "", "", 0
    try:
        for command in [*commands, END]:
            result = await session.exec(command)
            out += normalised(result.stdout_bytes)
            err += normalised(result.stderr_bytes)
            code = result.exit_code or 0
    except SessionTerminated as ended:
        return out + normalised(ended.output.encode()), "", ended.exit_code or 0
    finally:
        await session.delete()
    return out, err, code


async def check(seeds: range) -> None:
    async with AsyncSandbox.create() as sandbox:
        for seed in seeds:
            commands = Script(seed).commands()
            whole = await run_whole(sandbox, commands)
            pieces = await run_in_pieces(sandbox, commands)
            if "--- " not in whole[0]:  # it ended early: the error that says so has no stderr
                assert "--- " not in pieces[0]
                whole = (whole[0], pieces[1], whole[2])
            assert pieces == whole, f"seed {seed}:\n" + "\n~~~\n".join(commands)


@pytest.mark.parametrize("first", range(0, 150, 50))
async def test_scripts_in_pieces_do_what_they_do_whole(first: int) -> None:
    await check(range(first, first + 50))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_scripts_in_pieces_do_what_they_do_whole() -> None:
    await check(range(1000))
