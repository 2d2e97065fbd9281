"""Attempts to break out of a sandbox, each with a control that proves the attempt works where nothing stops it."""
