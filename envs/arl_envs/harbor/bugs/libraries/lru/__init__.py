"""Caches that forget."""
