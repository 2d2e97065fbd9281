"""The server's sandboxes from outside their runtimes: which there are, and how they are made, started and removed."""
