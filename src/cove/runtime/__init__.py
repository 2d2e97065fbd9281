"""The runtime: living sandboxes and the processes in them."""
