"""Tar streams of whole trees, packed and unpacked by agent, runtime and client alike. Standard library only."""
