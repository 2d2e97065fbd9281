"""Run one target under libFuzzer, by atheris, in this process, which ends with it: `python -m fuzz.engine NAME ...`.

Arguments after the name are libFuzzer's own: options, then directories of inputs, the first of which it adds to.
"""

import ctypes
import os
import random
import sys

import atheris

# Parsers of others whose mistakes would be ours.
_INSTRUMENTED = ["cove", "fuzz.targets", "dns", "h11", "http.client"]
_ASK = 0xFFFFFFFF
_FIXED_ADDRESSES = 0x0040000  # ADDR_NO_RANDOMIZE


def main() -> None:
    """Instrument what the target imports, then fuzz until an option or a failure ends it."""
    _repeat_addresses()
    _repeat_chance()
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_INSTRUMENTED, enable_loader_override=False):
        from fuzz.target import load

        target = load(name)
    atheris.Setup([f"fuzz.engine {name}", *options], target.check_in_time)
    atheris.Fuzz()


def _repeat_addresses() -> None:
    """Begin again where addresses are those of every run: libFuzzer tells comparisons apart by where they stand.

    Containers may forbid it (personality(2)); runs then differ.
    """
    libc = ctypes.CDLL(None)
    now = libc.personality(_ASK)
    if now & _FIXED_ADDRESSES or libc.personality(now | _FIXED_ADDRESSES) == -1:
        return
    os.execv(sys.executable, [sys.executable, "-m", "fuzz.engine", *sys.argv[1:]])


def _repeat_chance() -> None:
    """Give the same random bytes in every run: what an id is compared with decides which input comes next."""
    chance = random.Random(0)
    random.seed(0)
    os.urandom = chance.randbytes
    random._urandom = chance.randbytes  # type: ignore[attr-defined]  # SystemRandom, and so `secrets`, has its own name


if __name__ == "__main__":
    main()
