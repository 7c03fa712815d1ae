"""Matrices of whole numbers, as lists of rows."""
