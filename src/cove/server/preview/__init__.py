"""Previews: the reverse proxy from a preview URL to a service inside a sandbox."""
