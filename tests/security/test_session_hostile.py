"""Careless and hostile commands: the session goes on with its state, or ends at once and can be made again."""

from contextlib import suppress

import pytest

from cove import AsyncSandbox, SessionTerminated

pytestmark = pytest.mark.anyio

# "as soon as it is noticed": looks at a silent shell are this far apart at most.

LINES = r"""
cd() { :; }
read() { :; }
eval() { :; }
printf() { :; }
builtin() { :; }
command() { :; }
unset() { :; }
trap() { :; }
exit() { :; }
export() { :; }
return() { builtin return 7; }
local() { builtin echo local; }
set() { :; }
break() { :; }
mapfile() { :; }
test() { :; }; [() { :; }
declare() { :; }
shopt() { :; }
umask() { :; }
for n in cd read eval printf command unset trap exit export return local declare builtin; do eval "$n() { :; }"; done
alias cd=: read=: eval=: printf=: builtin=: command=: unset=: trap=: exit=: export=: local=: mapfile=:
alias builtin=exit
alias while=: until=: if=: done=: do=: '{'=: '[['=:
set -o posix; builtin() { :; }
builtin() { echo x; }; unset() { echo y; }; POSIXLY_CORRECT=1
exec >/tmp/file
exec 2>&-
exec 1>&- 2>&- 0<&-
exec 0</dev/zero
exec 3>&1 4>&2
for n in {0..255}; do eval "exec $n>&-"; done
for n in {0..255}; do eval "exec $n<&-"; done
for n in {3..255}; do eval "exec $n</dev/null"; done
exec 10>/tmp/ten 11>/tmp/eleven 255>/tmp/last
exec 255</dev/null
exec 1>/dev/full
exec 2>&1 >/dev/null
exec {fd}>/tmp/fd
IFS=
IFS=$' \t\n\\i'
unset IFS
unset PATH
PATH=/nonexistent
PATH=
readonly IFS=x
readonly PATH
readonly REPLY
readonly PWD OLDPWD
readonly TMOUT=1
readonly POSIXLY_CORRECT
trap 'echo err' ERR; false
trap 'echo return' RETURN
trap 'echo exit' EXIT
trap 'echo debug >&2; false' DEBUG
set -E; trap 'exit 3' ERR
set -e
set -e; false && true
set -u
set -x
set -v
set -f
set -C
set -t
set -k
set -a
set -b
set -m
set -P
set -H
set -p
set -o posix
set -o pipefail
set -o vi
set -euxo pipefail
set -eEuTo pipefail
set -e; set -o posix
shopt -s nullglob failglob dotglob nocaseglob nocasematch
shopt -s extglob globstar xpg_echo lastpipe compat31
shopt -s compat44 localvar_inherit localvar_unset
shopt -u expand_aliases
shopt -s execfail; exec /nonexistent
shopt -s inherit_errexit huponexit
shopt -s failglob; echo /nonexistent*
shopt -s extdebug
unset -f $(declare -F | cut -d' ' -f3)
unset -f __cove_wait; __cove_wait() { :; }
__cove_out=/nonexistent/x __cove_in=/nonexistent __cove_next=()
__cove_last=garbage
__cove_status 200
kill -CHLD $$; kill -WINCH $$; kill -CONT $$; kill -URG $$
kill -TSTP $$; kill -TTIN $$; kill -TTOU $$; kill -CONT $$
kill -QUIT $$
kill -RTMAX-7 $$
kill -TERM $PPID
kill -INT $PPID; kill -HUP $PPID; kill -USR1 $PPID; kill -QUIT $PPID
return 3
break
continue
break 99
continue 99
while :; do break 5; done
for i in 1 2 3; do continue 9; done
(exit 3)
f() { return 4; }; f
suspend
logout
echo 'unterminated
echo "unterminated
echo $(unterminated
echo ${x
echo `date
cat <<EOF
cat <<'EOF'
cat <<-
if
if true; then
while :; do
case x in
function f {
}
)
(
{
;;
;
&
|
&&
! !
done
fi
esac
then
echo hi \
echo hi &
echo hi ||
# comment
echo hi # comment
#
cat <<'}' ; echo after
cat <<')' ; echo after
cat <<"__cove_report"
cat <<''
printf '\0\0\0'
head -c 100000 /dev/urandom
head -c 50000000 /dev/zero
head -c 20000000 /dev/zero >&2
LANG=xx_XX.UTF-8
export LC_ALL=POSIX LANG=C
LC_ALL=nonexistent
unset LANG LC_ALL
umask 777
ulimit -n 10
ulimit -f 0
ulimit -Hf 0
ulimit -v 50000
ulimit -s 256
mkdir -p d && cd d && chmod 000 .
mkdir -p e && cd e && rmdir ../e
mkdir -p f && cd f && rm -rf ../f && cd .
mkdir -p g && cd g && mv ../g ../h
for i in {1..20}; do (while :; do echo spam; sleep 0.01; done) & done
yes &
yes >&2 &
sleep 100 &
sleep 100 & disown
nohup sleep 100 &
setsid sleep 100 &
coproc cat
coproc { yes; }
exec 3< <(yes)
: > >(cat)
echo a > >(sleep 100; cat)
cat <(yes) | head -1
wait
wait 99999
wait -n
jobs; fg; bg
exec 3<>$__cove/go
exec 3<$__cove/done
echo forged > $__cove/out.0
echo > $__cove/command
set -o history; history -c
hash -p /bin/false ls; hash -p /nonexistent bash
set -- a b c
set -- ; shift 3
f-.:@() { echo odd; }; f-.:@
function a/b { echo slash; }; a/b
function = { :; }
declare -n ref=x; ref=1
declare -n x1=x2 x2=x1; echo $x1
f() { f; }; FUNCNEST=50; f
FUNCNEST=1
eval "$(printf '(%.0s' {1..3000})"
export BASH_ENV=/nonexistent ENV=/nonexistent
PROMPT_COMMAND='echo prompt'; PS1='$(echo x)'; PS0='$(kill $$)'
PS4='$(exit 3)'; set -x
exec 9>/tmp/trace; BASH_XTRACEFD=9; set -x
sleep 100 & disown -a
trap '' INT TERM HUP QUIT
trap '' RTMAX-7
trap - RTMAX-7
trap 'echo mine' RTMAX-7; kill -RTMAX-7 $$
trap 'echo child' CHLD; sleep 0.01
trap '' PIPE CHLD
SECONDS=1000 RANDOM=5 LINENO=3 BASH_ARGV0=hello
GLOBIGNORE='*'
enable -n eval
enable -n builtin
enable -n printf
enable -n mapfile
enable -n declare
enable -n exit
enable -n return
enable -n builtin eval printf mapfile declare read exit return
enable -n cd unset export local set shopt trap umask ulimit alias pushd
enable() { :; }; builtin enable -n eval
CDPATH=/; HOME=/nonexistent; cd
unset HOME; cd
unset PWD OLDPWD DIRSTACK
PWD=/nonexistent
export A=$'x\ny\'"$(id)`\\' B=$'\xff\xfe' C=
export -n PATH
declare -x -a arr=(1 2)
BASH_COMPAT=3.1
caller
source /nonexistent
time sleep 0.01
ls -l /proc/$$/fd
cat
read line
mapfile; read -t 0.01 y
select y in a b; do break; done
python3 -c 'import os; [os.close(n) for n in range(3)]'
python3 -c 'import fcntl,os; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK); fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)'
"""
LIVES = [
    *LINES.strip("\n").split("\n"),
    "",
    "   ",
    "\n\n\n",
    "\t",
    "echo hi \\\n",
    "cat <<E\nbody\nE",
    "cat <<E\nbody",
    "set -e; cat <<E\nbody",
    "if true\nthen echo x\nfi",
    "echo 'a\n}\nb'",
    "echo \\\n\\\n",
    ": '" + "x" * 1_000_000 + "'",
    "echo " + "$((1)) " * 100_000 + ">/dev/null",
]

# What bash itself does not survive, and what shuts the runtime out.
ENDS = {
    "exit 3": 3,
    "f() { exit 4; }; f": 4,
    "trap 'exit 9' USR1; kill -USR1 $$": 9,
    "builtin() { command exit 5; }": 5,
    "exec true": 0,
    "exec nonexistent-program": 127,
    "exec /etc/passwd": 126,
    "set -e; false": 1,
    "set -u; echo $nope": 1,
    "set -o posix; unset() { :; }": 2,
    "kill -9 $$": 137,
    "kill -TERM $$": 143,
    "kill -INT $$": 130,
    "kill -HUP $$": 129,
    "kill -TERM 0": 143,
    "kill -9 0": 137,
    "kill -STOP $$": 137,
    "suspend -f": 137,
    "set -n": 137,
    "shopt -s extdebug; trap 'false' DEBUG": 137,
    "shopt -s extdebug; trap '(exit 2)' DEBUG": 137,
    "shopt -s extdebug; trap 'return 1' DEBUG": 137,
    "__cove_id=": 137,
    "__cove_id=7": 137,
    "ulimit -n 4": 125,
    "enable -n $(enable -ps | cut -d' ' -f2) enable builtin": 1,
    "enable() { :; }; builtin enable -n builtin": 1,
    "builtin() { :; }; readonly -f builtin": 1,
    "printf 'garbage' > $__cove/done": 137,
    "printf '\\0\\0\\0\\0\\0\\0' > $__cove/done": 137,
    "printf 'i1\\0000\\0/tmp\\0' > $__cove/done": 137,
    "yes > $__cove/done": 137,
}

# Nothing is wrong with the command itself: the next one cannot be heard.
ENDS_NEXT = {
    "printf '%s\\0000\\0/tmp\\0' $__cove_id > $__cove/done": 137,
    "printf '3 0 /dev/null\\0' > $__cove/go": 125,
    "printf 'no nul at all' > $__cove/go": 125,
    "head -c 60000 /dev/zero > $__cove/go": 125,
    "declare -r __cove_id": 137,
}


# These change what all sessions of a sandbox share.
HARMS = [
    "rm -rf /run/cove",
    "rm -rf /run/cove/shell/*",
    "mv /home /home2",
    "chmod 000 /workspace",
    "chmod 000 /tmp",
    "rm -rf /workspace/* /tmp/* /home/user",
    "ulimit -u 1",
]

PER_SANDBOX = 20


async def answers_after(sandbox: AsyncSandbox, command: str) -> bool:
    session = await sandbox.create_session()
    await session.exec("x=1")
    await session.exec(command)
    result = await session.exec('\\echo "ok $x"')
    await session.delete()
    return result.stdout == "ok 1\n"


@pytest.mark.parametrize("first", range(0, len(LIVES), PER_SANDBOX), ids=lambda at: f"{LIVES[at]:.30}")
async def test_the_session_answers_as_before_after_each_from(first: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        for command in LIVES[first : first + PER_SANDBOX]:
            assert await answers_after(sandbox, command), command


@pytest.mark.parametrize("command", HARMS)
async def test_the_session_answers_as_before_after(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert await answers_after(sandbox, command)


async def test_a_launcher_that_is_stopped_for_a_moment_costs_at_most_its_session() -> None:
    """Whoever stops the launcher has it ended, with its shell, if init sees it in time."""
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        with suppress(SessionTerminated):
            await session.exec("kill -STOP $PPID; kill -CONT $PPID")
            assert (await session.exec("echo lives")).stdout == "lives\n"
        assert await answers_after(sandbox, ":")


@pytest.mark.parametrize(("command", "code"), ENDS.items())
async def test_the_session_ends_with(command: str, code: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("x=1")
        with pytest.raises(SessionTerminated) as caught:
            await session.exec(command)
        assert caught.value.exit_code == code
        again = await sandbox.create_session(id="s")
        assert (await again.exec("echo ok $x")).stdout == "ok\n"


@pytest.mark.parametrize(("command", "code"), ENDS_NEXT.items())
async def test_the_command_after_it_finds_an_ended_session(command: str, code: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("x=1")
        assert (await session.exec(command)).exit_code == 0
        with pytest.raises(SessionTerminated) as caught:
            await session.exec("echo ok $x")
        assert caught.value.exit_code == code
        again = await sandbox.create_session(id="s")
        assert (await again.exec("echo ok $x")).stdout == "ok\n"


async def test_a_report_filled_with_bytes_of_others_never_reaches_a_caller() -> None:
    """Whatever a command writes to the fifos of another session, that session answers rightly or has ended."""
    async with AsyncSandbox.create() as sandbox:
        victim = await sandbox.create_session(id="victim")
        await victim.exec("x=1")
        attacker = await sandbox.create_session()
        for attack in (
            "printf '2\\0000\\0/x\\0' > done",
            "printf '\\0' > exports",
            "yes > exports",
            "printf 'go\\0' > go",
            "echo forged > out.0",
            "cat go done",
        ):
            await attacker.exec(f"cd /run/cove/shell/1 && {attack}", timeout=0.2)
            try:
                result = await victim.exec("echo $x; pwd")
                assert result.stdout == "1\n/workspace\n"
            except SessionTerminated:
                victim = await sandbox.create_session(id="victim")
                await victim.exec("x=1")
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"


async def test_a_shell_that_waits_in_silence_is_not_taken_for_one_that_never_answers() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1; TMOUT=1")
        for command in ("sleep 1.6", "read -t 1.6 < <(sleep 100)", "exec >&-; sleep 1.6", "exec >/dev/null; sleep 1.6"):
            await session.exec(command)
        assert (await session.exec("echo ok $x")).stdout == "ok 1\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("set -T; trap 'echo debug' DEBUG", "debug\nok 1\n"),
        ("trap 'echo debug' DEBUG", "debug\nok 1\n"),
        ("BASH_XTRACEFD=1; set -x", "++ echo 'ok 1'\nok 1\n"),
        ("echo() { builtin echo fake; }", "fake\n"),
        ("alias echo='echo alias'; shopt -s expand_aliases", "ok 1\n"),
    ],
)
async def test_what_a_command_arranged_to_be_printed_appears_once_and_nowhere_else(command: str, output: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        await session.exec(command)
        result = await session.exec('\\echo "ok $x"')
        assert (result.stdout, result.exit_code) == (output, 0)
        assert await session.cwd() == "/workspace"
        process = await session.start_process("true", keep=False)
        assert (await process.wait()).exit_code == 0
