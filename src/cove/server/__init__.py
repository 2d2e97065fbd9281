"""The server: gateway workers, and what they relay to."""
