"""Random use of real sandboxes with random faults, against a model of what must be true: `python -m soak`."""
