"""The protocol of E2B's clients: half in a gateway worker, half in a runtime."""
