"""Pure logic: decisions without input or output."""
