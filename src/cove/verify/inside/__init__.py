"""Attempts that code makes inside. Standard library only: these files are copied into the sandbox and run there."""
