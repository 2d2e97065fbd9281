"""Coverage-guided fuzzers for every parser that reads bytes of an enemy: `python -m fuzz`."""
