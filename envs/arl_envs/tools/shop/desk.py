"""All tools of the shop."""

from __future__ import annotations

from .orders import Orders


class Desk(Orders):
    """The tools; an environment offers them, and the generator of tasks works with them."""


WRITES = frozenset({"cancel_order", "ship_order", "refund_order"})
"""Tools that change something."""

READS = frozenset({"find_order", "get_order"})
