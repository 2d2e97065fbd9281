"""What is run inside a booted machine."""
