"""The commands of `arl`: one function for each, which returns the exit code."""
