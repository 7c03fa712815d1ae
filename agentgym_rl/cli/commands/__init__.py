"""What `arl` does: one function for each command, which returns the exit code."""
