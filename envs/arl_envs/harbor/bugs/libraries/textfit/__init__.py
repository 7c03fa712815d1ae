"""Text that fits into columns."""
