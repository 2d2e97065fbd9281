"""The HTTP client: the same API for sandboxes on a server."""
