# shellcheck shell=bash disable=SC2016,SC2154 # strings for later use; the directory comes with the environment
# The shell's side of a session. Sourced once through BASH_ENV; the loop that uses it is in loop.bash.
#
# The runtime tells the shell to go by writing "ID PAIR STDIN" to the fifo `go`; STDIN may be missing. The command
# is in the file `command`, ended by NUL. Its output goes to the fifos `out.PAIR` and `err.PAIR`, unless the id
# starts with "i", which marks the runtime's own work. When it has ended, the shell writes ID, status and working
# directory, and then, while the caller already goes on, the exported variables, each ended by NUL, to `done`.
# All of these lie in the directory $__cove, which is read-only for the sandbox. Nothing stays open while a
# command runs, so there is nothing to close by accident. What could be redefined is called through `builtin`.
#
# Interruption: the runtime sends RTMAX-7 and ends the processes of the command. The handler breaks out of the
# loops around the interrupted command and sets a DEBUG trap that skips every further command until one of the
# names here comes up. With extdebug, a status of 1 from that trap skips the command, and 2 returns from the
# function it is in: bash(1), shopt. `break 0` is an error, but leaves all loops: it skips and breaks at once;
# where there is no loop, `break` succeeds without effect.

unset BASH_ENV
BASH_ARGV0=bash
declare -r __cove=$__cove_directory
unset __cove_directory
declare -r __cove_skip='if [[ $BASH_COMMAND == __cove_* ]]; then builtin trap - DEBUG; builtin shopt -u extdebug; builtin set +T; else builtin break 0 2>/dev/null && __cove_status 2; fi'
declare -r __cove_interrupt='builtin shopt -s extdebug; builtin trap "$__cove_skip" DEBUG; builtin break 0 2>/dev/null'
__cove_last=${__cove_last:-0}
__cove_id=
__cove_command=
__cove_out=/dev/null
__cove_err=/dev/null
__cove_in=/dev/null
shopt -s expand_aliases

# Make $? what it was after the last command.
__cove_status() {
    return "$1"
}

# Wait for the next command.
__cove_wait() {
    builtin local REPLY TMOUT= || builtin exit 125
    until builtin read -r -d '' <"$__cove/go"; do
        # A signal ended the reading; anything else means that the runtime cannot be heard.
        [[ $? -gt 128 ]] || builtin exit 125
    done
    __cove_id=${REPLY%% *}
    REPLY=${REPLY#* }
    __cove_in=/dev/null
    [[ $REPLY != *' '* ]] || __cove_in=${REPLY#* }
    if [[ $__cove_id == i* ]]; then
        __cove_out=/dev/null
        __cove_err=/dev/null
    else
        __cove_out=$__cove/out.${REPLY%% *}
        __cove_err=$__cove/err.${REPLY%% *}
    fi
    builtin read -r -d '' <"$__cove/command"
    __cove_command=$REPLY
}

# Tell how the command ended, once. An id that starts with "i" is the runtime's own work, which leaves $? alone.
__cove_report() {
    [[ -n $__cove_id ]] || return 0
    __cove_trust || return 0
    {
        builtin printf '%s\0%s\0%s\0' "$__cove_id" "$1" "$PWD"
        builtin export -p
        builtin printf '\0'
    } >"$__cove/done"
    [[ $__cove_id == i* ]] || __cove_last=$1
    __cove_id=
    __cove_command=
}

# A function called `builtin` would stand between us and the real one: remove it. In POSIX mode `unset` wins
# over functions of that name; the mode is left as it was found.
__cove_trust() {
    __cove_trusted=
    builtin printf -v __cove_trusted %s yes
    [[ $__cove_trusted == yes ]] && return
    if [[ :$SHELLOPTS: == *:posix:* ]]; then
        unset -f builtin
    else
        __cove_trusted=$BASHOPTS
        # shellcheck disable=SC2034 # bash itself watches this variable
        POSIXLY_CORRECT=1
        unset -f builtin
        unset -v POSIXLY_CORRECT
        [[ :$__cove_trusted: != *:expand_aliases:* ]] || builtin shopt -s expand_aliases
        [[ :$__cove_trusted: == *:inherit_errexit:* ]] || builtin shopt -u inherit_errexit
    fi
    builtin printf -v __cove_trusted %s yes
    [[ $__cove_trusted == yes ]]
}

# Write everything that makes up this shell's state; called with the positional parameters.
__cove_snapshot() {
    {
        builtin printf '%s\0' "$PWD" "${OLDPWD-}" "$__cove_last" "$#" "$@" "${#DIRSTACK[@]}" "${DIRSTACK[@]}"
        builtin umask
        builtin printf '\0'
        builtin ulimit -S -a
        builtin printf '\0'
        builtin shopt -p
        builtin printf '\0'
        builtin set +o
        builtin printf '\0'
        builtin declare -f
        builtin printf '\0'
        builtin declare -p
        builtin printf '\0'
        builtin alias -p
        builtin printf '\0'
        builtin trap -p
        builtin printf '\0'
    } >"$__cove/state"
}

readonly -f __cove_status __cove_wait __cove_report __cove_trust __cove_snapshot
# shellcheck disable=SC2064 # expanded now, so that no variable is needed later
trap "$__cove_interrupt" RTMAX-7
if [[ -n ${__cove_restore-} ]]; then
    unset __cove_restore
    # shellcheck source=/dev/null
    . "$__cove/restore"
fi
