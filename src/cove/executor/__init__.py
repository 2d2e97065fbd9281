"""What runs code contexts inside the sandbox: imports nothing of Cove but the agent, which lies beside it there."""
