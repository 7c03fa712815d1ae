"""Why a row makes no problem."""

from __future__ import annotations


class RowRefused(ValueError):
    """This row cannot be used, and why; the rows beside it may well be."""
