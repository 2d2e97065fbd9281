"""A server's sandboxes from outside their runtimes: list, create, start, keep warm, remove."""
