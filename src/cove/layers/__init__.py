"""Layers: immutable directories that sandboxes stand on, compared, hashed, packed and kept by reference."""
