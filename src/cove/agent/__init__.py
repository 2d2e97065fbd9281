"""What runs inside the sandbox: standard library only, imports nothing else of Cove."""
