"""A machine for classic BPF programs, as the kernel runs them on a system call."""

import struct

from cove.core import bpf


def run_filter(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """The answer of the program to a call: bpf(4), seccomp(2)."""
    padded = (*arguments, *(0 for _ in range(6 - len(arguments))))
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *padded)
    instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = word = 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        match code:
            case bpf.LOAD_WORD:
                (word,) = struct.unpack_from("<I", data, value)
            case bpf.AND:
                word &= value
            case bpf.JUMP:
                at += value
            case bpf.JUMP_IF_EQUAL:
                at += if_true if word == value else if_false
            case bpf.JUMP_IF_NOT_BELOW:
                at += if_true if word >= value else if_false
            case bpf.JUMP_IF_ANY_BIT:
                at += if_true if word & value else if_false
            case bpf.RETURN:
                return int(value)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")
