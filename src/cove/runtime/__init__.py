"""What is alive: sandboxes and the processes in them."""
