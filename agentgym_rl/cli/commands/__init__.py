"""The commands of the kernel, one a file."""
