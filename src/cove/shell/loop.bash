# shellcheck shell=bash disable=SC2154
# The outer loop is for a command that says `break`, the last report for one that was interrupted. What stands before
# `__cove_wait` writes down the user's DEBUG trap, which no function sees; what stands after it keeps a status that is
# not 0 from counting as a failure.
while __cove_status 0; do while __cove_report "$?"; do [[ -z $__cove_has_traps ]] || \builtin trap -p DEBUG >"$__cove/debug"; __cove_wait && [[ -n $__cove ]]; \builtin eval "${__cove_next[5]}" <"${__cove_next[1]}" >"${__cove_next[2]}" 2>"${__cove_next[3]}"; done; done; __cove_report 130
