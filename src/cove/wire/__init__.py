"""How calls and values travel between a client and a server: one table of operations, read by both ends."""
