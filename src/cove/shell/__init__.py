"""The shell's side of sessions: bash files, no code of ours in Python."""
