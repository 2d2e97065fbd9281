# shellcheck shell=bash disable=SC2154
while __cove_wait; do __cove_status "$__cove_last" && __cove_status 0; { builtin eval "$__cove_command"; } <"$__cove_in" >"$__cove_out" 2>"$__cove_err"; __cove_report "$?"; done; __cove_report 130
