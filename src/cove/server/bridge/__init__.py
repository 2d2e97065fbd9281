"""A protocol that clients of others speak, `/v1/sandbox/...`: half of it in a gateway worker, half in a runtime."""
