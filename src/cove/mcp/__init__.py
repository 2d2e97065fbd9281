"""A Model Context Protocol server on a toolset, by the official package `mcp`: over stdio, and over HTTP."""
