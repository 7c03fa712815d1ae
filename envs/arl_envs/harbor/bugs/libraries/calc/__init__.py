"""A calculator of whole numbers with names."""
