"""The process of one sandbox: forked by the zygote, it serves the sandbox and sees to its end."""
