"""The wire format: one table of operations, read by client and server."""
