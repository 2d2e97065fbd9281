"""Facilities of this machine that runtime and client share: threads, pipes, sockets, files, the state directory."""
