"""Lengths, times and temperatures in whole numbers."""
