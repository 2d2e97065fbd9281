"""What the kernel offers, one facility per file, no policy."""
