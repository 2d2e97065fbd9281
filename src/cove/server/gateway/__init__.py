"""The gateway: authenticate, route, and relay to runtimes."""
