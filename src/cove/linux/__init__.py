"""Kernel facilities, one per module, no policy."""
