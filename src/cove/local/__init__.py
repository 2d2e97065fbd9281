"""This machine, as both the embedded runtime and the client of a server use it: threads, pipes, sockets, files."""
