# shellcheck shell=bash disable=SC2016,SC2154 # strings for later use; the directory comes with the environment
# The shell's side of a session. Sourced once through BASH_ENV; the loop that uses it is in loop.bash.
#
# The runtime tells the shell to go by writing to the fifo `go`. What to do is in the file `command`: ID, INPUT,
# OUTPUT, ERRORS, CARE and the command, each ended by NUL. An id that starts with "i" marks the runtime's own
# work; CARE has an `s` where the command may set options, a `t` where it may set traps, and a `v` where it may do
# so in a way that must not be looked into. When it has ended, the shell writes ID, status and working directory,
# each ended by NUL, to the fifo `done`, and then, while the caller already goes on, the exported variables and a
# NUL to the fifo `exports`. bash needs time in proportion to the square of their number to list its variables; where
# that is seconds, only a byte 1 is written there for a while.
# All of these lie in the directory $__cove, which is read-only for the sandbox. Nothing stays open while a
# command runs, so there is nothing to close by accident. What could be redefined is called through `builtin`.
# Text that is read while the user's aliases hold says `\builtin`.
# Redirections are on single builtins: traces and what a DEBUG trap prints come before them and go elsewhere.
#
# Interruption: the runtime sends RTMAX-7 and ends the processes of the command. The handler sets a DEBUG trap that
# skips every further command until one of the names here comes up. With extdebug, a status of 1 from that trap skips
# the command, and 2 returns from the function it is in: bash(1), shopt. `break 0` is an error, but leaves all loops: it
# skips and breaks at once; where there is no loop, `break` succeeds without effect.
# The command at hand may be past its DEBUG trap: bash substitutes its words, and would then execute it. What comes next
# is its trace, for which bash expands PS4: there an assignment to an integer fails, and with it all that is being
# executed, up to the next line of the loop; the trace is then off. Redirections have no trace. They fail because the shell may
# open no file: the limit leaves it the three that it has to put back. The DEBUG trap itself must not fail in this way,
# for bash would take it to be running for ever: it begins with what is not traced, and where the user's is running,
# which it tells by not being called itself, there is no trace. It lets the last two commands of the handler pass.
# A signal that comes early, in a function of ours, makes the command one that does nothing; one that comes late is
# followed by work of the runtime's own, and forgotten.
# First of all the handler tells the runtime that it runs, as a report whose id starts with "t".
# The user's own DEBUG trap is put aside meanwhile. In a function bash hides it, so the loop writes it down before
# each command: to the fifo `debug`, from which the shell reads it itself, for bash has no other way without a fork.
#
# Every process that a command starts inherits the command's number as its limit of file locks, which Linux does not
# use: setrlimit(2). By that the launcher knows what belongs to which command.

unset BASH_ENV
BASH_ARGV0=bash
declare -r __cove=$__cove_directory
unset __cove_directory
declare -r __cove_skip=$'${__cove_empty:$((__cove_passes||(__cove_stop=1))):0}\nif [[ $BASH_COMMAND == __cove_* ]]; then __cove_resume; elif [[ -n $__cove_passes ]]; then __cove_passes=${__cove_passes%?}; else \\builtin break 0 && __cove_status 2; fi'
declare -r __cove_interrupt='\builtin printf "t%s\0000\0\0" "$__cove_id" >"$__cove/done"; if [[ ${FUNCNAME-} == __cove_* ]]; then __cove_early=1; [[ $__cove_id != [0-9]* ]] || __cove_next[5]="__cove_status 130"; else \builtin declare -F exec >/dev/null || \exec 2>/dev/null; [[ -n ${FUNCNAME-} ]] || { \builtin trap -p DEBUG >"$__cove/debug"; __cove_recall; }; __cove_put_aside; __cove_passes=11; \builtin trap "$__cove_skip" DEBUG; [[ $__cove_passes == 11 ]] || \builtin set -x; fi'
# One for each command after which the exports are not told, because bash took seconds to list its variables.
declare -r __cove_many=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
declare -r __cove_trailer=$'\n\n{ __cove_result=$?; } >/dev/null 2>&1'
__cove_last=${__cove_last:-0}
__cove_id=
__cove_next=()
__cove_result=
__cove_early=
__cove_trusted=
__cove_retried=
__cove_aside=
__cove_passes=
__cove_debug=
__cove_ps4=
__cove_files=
declare -r __cove_empty='' __cove_stops='${__cove_stop:=1/0}'
__cove_silent=
__cove_since=
__cove_has_traps=${__cove_restored-}
shopt -s expand_aliases

# Make $? what it was after the last command.
__cove_status() {
    builtin return "$1"
}

# Wait for the next command; the status is that of the last one.
__cove_wait() {
    until builtin mapfile -d '' -t -n 1 __cove_next <"$__cove/go"; do __cove_retry; done
    # Anything else means that the runtime cannot be heard.
    [[ ${__cove_next-} == go ]] || builtin exit 125
    builtin mapfile -d '' -t -n 6 __cove_next <"$__cove/command"
    __cove_id=${__cove_next-}
    [[ $__cove_id == i* ]] || builtin ulimit -S -x "$__cove_id" || __cove_label
    [[ -z ${__cove_next[4]}$__cove_has_traps$__cove_early && $- != *e* ]] || __cove_care
    builtin return "$__cove_last"
}

# The label could not be set at once. Without any, what belongs to a command is known by its age.
__cove_label() {
    __cove_enable
    builtin ulimit -S -x "$__cove_id" || builtin ulimit -S -x 0
}

# Read back the DEBUG trap that was written down.
__cove_recall() {
    builtin printf '\0' >"$__cove/debug"
    builtin mapfile -d '' -t -n 1 __cove_debug <"$__cove/debug"
}

# An interruption is over. A trapped signal that comes when the last builtin was `wait`, though it waits no more, ends the
# next `wait` at once, whenever that comes. One for a process that is no child forgets it.
__cove_calm() {
    builtin wait "$$" 2>/dev/null || builtin return 0
}

# Make the command at hand fail, whatever of it is still to be executed, and remember what that changes.
__cove_put_aside() {
    __cove_aside=$-:$BASHOPTS
    builtin set +x
    builtin trap '' RTMAX-7
    builtin shopt -s extdebug promptvars
    builtin unset -v __cove_stop
    builtin declare -gi __cove_stop
    __cove_ps4=${PS4+=$PS4}
    [[ -n $__cove_ps4 && ${PS4@a} == *[!x]* ]] || PS4=$__cove_stops
    builtin ulimit -S -n >"$__cove/debug" || builtin return 0
    builtin mapfile -t -n 1 __cove_files <"$__cove/debug"
    builtin ulimit -S -n 3 || builtin :
}

# The interrupted command is over: the user's DEBUG trap, and all that was put aside, are as they were.
__cove_resume() {
    builtin trap - DEBUG
    [[ -z ${__cove_files-} ]] || builtin ulimit -S -n "$__cove_files" || builtin :
    __cove_files=
    if [[ ${PS4-} == "$__cove_stops" ]]; then
        PS4=${__cove_ps4#=}
        [[ -n $__cove_ps4 ]] || builtin unset -v PS4
    fi
    builtin set +x
    # shellcheck disable=SC2064 # as at the end of this file
    builtin trap "$__cove_interrupt" RTMAX-7
    [[ :$__cove_aside: == *:promptvars:* ]] || builtin shopt -u promptvars
    if [[ :$__cove_aside: != *:extdebug:* ]]; then
        builtin shopt -u extdebug
        [[ ${__cove_aside%%:*} != *T* ]] || builtin set -T
        [[ ${__cove_aside%%:*} != *E* ]] || builtin set -E
    fi
    [[ ${__cove_aside%%:*} != *x* ]] || builtin set -x
    __cove_aside=
    builtin eval "${__cove_debug-}"
}

# Rare cases, all in one place: each test here is a part of what every command costs.
# To bash a failing `eval` is a failure also where what failed in it is none, as in `false && true`. Where that
# matters, for errexit and ERR traps, the status is put aside.
__cove_care() {
    [[ -z $__cove_has_traps ]] || __cove_recall
    [[ $__cove_id != i* ]] || {
        __cove_early=
        builtin return 0
    }
    [[ ${__cove_next[4]} != *t* ]] || __cove_has_traps=1
    # `set -v` would show it, and a DEBUG trap may do with it what it likes.
    if [[ $- == *e* || ${__cove_next[4]} == *s* || -n $__cove_has_traps ]] &&
        [[ $- != *v* && ${__cove_next[4]} != *v* ]] &&
        __cove_parses "${__cove_next[5]}" && ! __cove_parses "${__cove_next[5]}"$'\n\n)'; then
        # It is complete, and no open here-document swallows another line.
        __cove_next[5]+=$__cove_trailer
    fi
    # An interruption came before the command had begun.
    [[ -z $__cove_early ]] || __cove_next[5]='__cove_status 130'
    __cove_early=
}

# With noexec bash only reads, until the end of this function brings the options back. After `command`, a syntax
# error does not end a shell in POSIX mode.
__cove_parses() {
    builtin local -
    builtin set +e
    builtin command eval $'\\builtin set -n\n'"$1" 2>/dev/null
}

# Tell how the command ended, once. An id that starts with "i" is the runtime's own work, which leaves $? alone.
__cove_report() {
    builtin eval '__cove_trusted=$__cove_id'
    [[ -n $__cove_id && $__cove_trusted == "$__cove_id" ]] || __cove_trust || builtin return 0
    until builtin printf '%s\0%s\0%s\0' "$__cove_id" "${__cove_result:-$1}" "${DIRSTACK[0]-${PWD-}}" >"$__cove/done"; do
        __cove_retry
    done
    if [[ -z $__cove_silent ]]; then
        __cove_since=${SECONDS-}
        until builtin declare -px >"$__cove/exports"; do __cove_retry; done
        [[ $__cove_since == "${SECONDS-}" || ${SECONDS-} == "$((__cove_since + 1))" ]] || __cove_silent=${__cove_many}
    else
        builtin printf '\1' >"$__cove/exports"
        __cove_silent=${__cove_silent%?}
    fi
    builtin printf '\0' >"$__cove/exports"
    [[ $__cove_id == i* ]] || __cove_last=${__cove_result:-$1}
    __cove_id='' __cove_result='' __cove_retried=''
}

# A function called `builtin` would stand between us and the real one: remove it. In POSIX mode `unset` wins
# over functions of that name; the mode is left as it was found. Fails when there is nothing to report.
__cove_trust() {
    [[ -n $__cove_id ]] || builtin return 1
    if [[ :$SHELLOPTS: == *:posix:* ]]; then
        unset -f builtin
        enable builtin
    else
        __cove_trusted=$BASHOPTS
        # shellcheck disable=SC2034 # bash itself watches this variable
        POSIXLY_CORRECT=1
        unset -f builtin
        enable builtin
        unset -v POSIXLY_CORRECT
        [[ :$__cove_trusted: != *:expand_aliases:* ]] || builtin shopt -s expand_aliases
        [[ :$__cove_trusted: == *:inherit_errexit:* ]] || builtin shopt -u inherit_errexit
    fi
    until builtin eval '__cove_trusted=$__cove_id' && [[ $__cove_trusted == "$__cove_id" ]]; do __cove_retry; done
}

# A builtin has failed us: try again with it enabled, once. If that does not help the shell ends; without `exit` it
# does by an expansion that fails.
__cove_retry() {
    if [[ -n $__cove_retried ]]; then
        builtin exit 125
        # shellcheck disable=SC2317 # `exit` may be disabled too
        __cove_retried=${__cove_nothing:?"a builtin cannot be used"}
    fi
    __cove_retried=1
    __cove_enable
}

# Bring back the builtins that are needed here and that a command has disabled.
__cove_enable() {
    builtin enable alias break builtin cd command declare eval exit export local mapfile printf pushd return set \
        shopt trap ulimit umask unset
}

# Fail with status 3 where one of these variables (NAME=value or NAME) is read-only.
__cove_check() {
    __cove_enable
    builtin local - __cove_each __cove_flags
    builtin set +eu
    for __cove_each; do
        # Not ${!name@a}, which is empty where a variable has attributes but no value.
        builtin eval "__cove_flags=\${${__cove_each%%=*}@a}"
        [[ $__cove_flags != *r* ]] || builtin return 3
    done
}

# Export variables (NAME=value) or unset them (NAME) for good. With status 3 nothing has changed: one is read-only.
__cove_set() {
    builtin local - __cove_each __cove_name
    builtin set +eu
    __cove_check "$@" || builtin return 3
    for __cove_each; do
        __cove_name=${__cove_each%%=*}
        # A list, a number: the value would not arrive as it is.
        [[ $__cove_each == *=* && ${!__cove_name@a} != *[!x]* ]] || builtin unset -v "$__cove_name"
        [[ $__cove_each != *=* ]] || builtin export "${__cove_each?}"
    done
}

# The same for one call, in a directory ($1, empty: where we are). With status 4 it cannot be entered.
__cove_apply() {
    __cove_enable
    builtin local - __cove_each __cove_name __cove_was
    builtin set +eu
    __cove_saved=
    for __cove_each in OLDPWD "${@:2}"; do
        __cove_name=${__cove_each%%=*}
        __cove_saved+="\\builtin unset -v $__cove_name"$'\n'
        __cove_name+='[@]'
        __cove_was=${!__cove_name@A}
        if [[ $__cove_was == 'declare -'*=* ]]; then
            # In a function `declare` is local without -g, and after `builtin` it takes no list.
            __cove_was=${__cove_was#declare -}
            __cove_name=${__cove_was%%=*}
            __cove_was="\\builtin declare -g$__cove_name;${__cove_name#* }=${__cove_was#*=}"
        elif [[ $__cove_was == 'declare -'* ]]; then
            __cove_was="\\builtin declare -g${__cove_was#declare -}"
        fi
        __cove_saved+=$__cove_was$'\n'
    done
    if [[ -z $1 ]]; then
        __cove_set "${@:2}"
    else
        # By its old name a directory that was moved would not be found again; one that was removed has none.
        [[ ${DIRSTACK[0]} -ef . ]] || builtin cd -P . || builtin :
        __cove_was=${DIRSTACK[0]}
        __cove_saved="\\builtin cd -- ${__cove_was@Q} || __cove_result=4"$'\n'$__cove_saved
        builtin cd -- "$1" || return 4
        __cove_set "${@:2}" || {
            builtin eval "$__cove_saved"
            return 3
        }
    fi
}

# Enter the directory where we are once more, by its name: another one may have its place. Otherwise go to $1.
__cove_enter() {
    __cove_apply ''
    builtin cd -- "${DIRSTACK[0]}" 2>/dev/null || builtin cd -- "$1" || builtin :
    __cove_restore
}

# Undo `__cove_apply`. With status 4 the directory is gone.
__cove_restore() {
    __cove_enable
    builtin eval "$__cove_saved"
    __cove_saved=
}

# Write everything that makes up this shell's state; called with the positional parameters.
__cove_snapshot() {
    __cove_enable
    builtin printf '%s\0' "${DIRSTACK[0]-${PWD-}}" "${OLDPWD-}" "$__cove_last" >"$__cove/state"
    builtin printf '%s\0' "$#" "$@" "${#DIRSTACK[@]}" "${DIRSTACK[@]}" >"$__cove/state"
    builtin umask >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin ulimit -S -a >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin shopt -p >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin set +o >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin declare -f >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin declare -F >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin declare -p >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin alias -p >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
    builtin trap -p >"$__cove/state"
    builtin printf '\0' >"$__cove/state"
}

readonly -f __cove_status __cove_wait __cove_care __cove_parses __cove_report __cove_trust
readonly -f __cove_label __cove_calm __cove_recall __cove_put_aside __cove_resume __cove_check
readonly -f __cove_retry __cove_enable __cove_set __cove_apply __cove_enter __cove_restore __cove_snapshot
# shellcheck disable=SC2064 # expanded now, so that no variable is needed later
trap "$__cove_interrupt" RTMAX-7
if [[ -n ${__cove_restored-} ]]; then
    unset __cove_restored
    # shellcheck source=/dev/null
    . /dev/fd/62
fi
