"""The bridge protocol, `/v1/sandbox/...`, of clients that others wrote: half in a gateway worker, half in a runtime."""
