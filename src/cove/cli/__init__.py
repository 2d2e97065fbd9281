"""The command `cove`."""
