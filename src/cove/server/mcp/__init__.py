"""The Model Context Protocol at `/mcp` of a server: gateways find the sandbox, its runtime speaks with clients."""
