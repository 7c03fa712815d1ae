"""Spans of whole numbers: a span (start, end) holds start and leaves end out."""
