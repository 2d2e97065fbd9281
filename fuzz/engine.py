"""Run one target under libFuzzer, by atheris, in this process, which ends with it: `python -m fuzz.engine NAME ...`.

Arguments after the name are libFuzzer's own: options, then directories of inputs, the first of which it adds to.
"""

import os
import random
import sys

import atheris

# Parsers of others whose mistakes would be ours.
_INSTRUMENTED = ["cove", "fuzz.targets", "dns", "h11", "http.client"]


def main() -> None:
    """Instrument what the target imports, then fuzz until an option or a failure ends it."""
    name, *options = sys.argv[1:]
    _repeat_chance()
    with atheris.instrument_imports(include=_INSTRUMENTED, enable_loader_override=False):
        from fuzz.target import load

        target = load(name)
    atheris.Setup([f"fuzz.engine {name}", *options], target.check_in_time)
    atheris.Fuzz()


def _repeat_chance() -> None:
    """Give the same random bytes in every run: what an id is compared with decides which input comes next."""
    chance = random.Random(0)
    random.seed(0)
    os.urandom = chance.randbytes
    random._urandom = chance.randbytes  # type: ignore[attr-defined]  # SystemRandom, and so `secrets`, has its own name


if __name__ == "__main__":
    main()
