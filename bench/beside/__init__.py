"""Cove beside what a user would pick instead, and beside the bare machine, in one run.

Every contender is a program of its own (`python -m bench.beside.contender NAME`), because their dependencies do not
agree; the rounds alternate, so that noise hits all of them. What a contender does not offer is left out, never
emulated.
"""
