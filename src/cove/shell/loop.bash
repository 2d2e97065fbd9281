# shellcheck shell=bash disable=SC2154
# The outer loop is for a command that says `break`, the last report for one that was interrupted.
while __cove_status 0; do while __cove_report "$?"; __cove_wait; do __cove_status "$__cove_last" && __cove_status 0; \builtin eval "${__cove_next[3]}" <"$__cove_in" >"$__cove_out" 2>"$__cove_err"; done; done; __cove_report 130
