"""Assemble classic BPF programs: loads, tests that fall through, and a binary search among numbers."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

MOST_INSTRUCTIONS = 4096

# bpf(4): class, size and mode, or class, operation and source
LOAD_WORD = 0x20
JUMP = 0x05
JUMP_IF_EQUAL = 0x15
JUMP_IF_NOT_BELOW = 0x35
JUMP_IF_ANY_BIT = 0x45
AND = 0x54
RETURN = 0x06

_FARTHEST_TEST = 255
_LAYOUT = struct.Struct("=HBBI")


class Instruction(NamedTuple):
    """`struct sock_filter`; the two jumps count the instructions that are skipped."""

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


Program = list[Instruction]


class Span(NamedTuple):
    """The program for the numbers from `first` up to the next span; it ends in a return."""

    first: int
    then: Program


def load(offset: int) -> Program:
    """Load the word at that offset, to be tested."""
    return [Instruction(LOAD_WORD, offset)]


def clear_bits(bits: int) -> Program:
    """Clear these bits."""
    return [Instruction(AND, ~bits & 0xFFFFFFFF)]


def give(answer: int) -> Program:
    """Return the end of a program."""
    return [Instruction(RETURN, answer)]


def if_equal(value: int, then: Program) -> Program:
    """`then`, which ends in a return, for that value; what follows for every other."""
    return _unless(JUMP_IF_EQUAL, value, then)


def if_any_bit(bits: int, then: Program) -> Program:
    """`then`, which ends in a return, when one of the bits is set; what follows otherwise."""
    return _unless(JUMP_IF_ANY_BIT, bits, then)


def _unless(code: int, value: int, then: Program) -> Program:
    if len(then) <= _FARTHEST_TEST:
        return [Instruction(code, value, 0, len(then)), *then]
    return [Instruction(code, value, 1, 0), Instruction(JUMP, len(then)), *then]


def search(spans: Sequence[Span]) -> Program:
    """Find the span a number is in by halving; the first span is also that of all numbers before it."""
    if len(spans) == 1:
        return spans[0].then
    middle = len(spans) // 2
    below, above = search(spans[:middle]), search(spans[middle:])
    first = spans[middle].first
    if len(below) <= _FARTHEST_TEST:
        return [Instruction(JUMP_IF_NOT_BELOW, first, len(below), 0), *below, *above]
    return [Instruction(JUMP_IF_NOT_BELOW, first, 0, 1), Instruction(JUMP, len(below)), *below, *above]


def assemble(program: Program) -> bytes:
    """Return the bytes that the kernel takes."""
    if len(program) > MOST_INSTRUCTIONS:
        raise ValueError(f"a program of {len(program)} instructions: the kernel takes {MOST_INSTRUCTIONS}")
    return b"".join(_LAYOUT.pack(code, yes, no, value) for code, value, yes, no in program)
