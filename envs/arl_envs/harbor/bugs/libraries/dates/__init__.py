"""Dates without a library: a date is a tuple (year, month, day)."""
