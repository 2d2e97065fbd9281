"""The executors of code contexts, inside the sandbox. They import nothing of Cove but the agent."""
