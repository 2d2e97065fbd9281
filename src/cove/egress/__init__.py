"""The egress process of a sandbox: resolves, judges and carries its connections to the outside."""
