"""What a worker answers itself, who may ask it, and how the rest is passed on to runtimes."""
