"""The same API over HTTP: what a program holds when its sandboxes live on a server."""
