# shellcheck shell=bash disable=SC2016,SC2154 # strings for later use; the directory comes with the environment
# The shell's side of a session. Sourced once through BASH_ENV; the loop that uses it is in loop.bash.
#
# The runtime tells the shell to go by writing "ID PAIR STDIN" to the fifo `go`. The command is in the file
# `command`, ended by NUL. Its output goes to the fifos `out.PAIR` and `err.PAIR`. When it has ended, the shell
# writes ID, status, working directory and exported variables, each ended by NUL, to the fifo `done`.
# All of these lie in the directory $__cove, which is read-only for the sandbox. Nothing stays open while a
# command runs, so there is nothing to close by accident. What could be redefined is called through `builtin`.
#
# Interruption: the runtime ends the processes of the command and sends RTMAX-7. The handler breaks out of
# every loop and sets a DEBUG trap that skips all further commands, and returns from functions, until one of
# the names here comes up. `break` in a handler reaches the loops around the interrupted command: bash(1), trap.

unset BASH_ENV
declare -r __cove=$__cove_directory
unset __cove_directory
declare -r __cove_reach='builtin break 9999 2>/dev/null'
declare -r __cove_skip='if [[ $BASH_COMMAND == __cove_* ]]; then builtin trap - DEBUG; builtin shopt -u extdebug; builtin set +T; else '"$__cove_reach"'; __cove_status 2; fi'
declare -r __cove_interrupt='builtin shopt -s extdebug; builtin trap "$__cove_skip" DEBUG; '"$__cove_reach"
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
    __cove_trust || return
    builtin local REPLY TMOUT= || builtin exit 125
    until builtin read -r -d '' <"$__cove/go"; do
        # A signal ended the reading; anything else means that the runtime cannot be heard.
        [[ $? -gt 128 ]] || builtin exit 125
    done
    __cove_id=${REPLY%% *}
    REPLY=${REPLY#* }
    __cove_out=$__cove/out.${REPLY% *}
    __cove_err=$__cove/err.${REPLY% *}
    __cove_in=${REPLY#* }
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
