"""The agent: programs that run inside the sandbox. Standard library only; imports nothing else of Cove."""
