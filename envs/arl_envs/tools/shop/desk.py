"""The desk with all tools of the shop."""

from __future__ import annotations

from .calendar import Calendar
from .customers import Customers, Tickets
from .orders import Sales


class Desk(Customers, Sales, Calendar, Tickets):
    """The tools of the shop: an environment offers them, and the task generator calls them."""


ORDER_TOOLS = (
    *("find_customer", "get_customer", "set_phone", "list_orders", "find_order", "get_order"),
    *("cancel_order", "ship_order", "refund_order", "refund_part", "change_city"),
    *("find_product", "add_item", "create_order"),
)
"""The tools of the first five tables."""
CALENDAR_TOOLS = ("free_hours", "list_appointments", "book", "move_appointment")
TICKET_TOOLS = ("list_tickets", "close_ticket")

WRITES = frozenset(
    {
        *("set_phone", "cancel_order", "ship_order", "refund_order", "refund_part", "change_city"),
        *("add_item", "create_order", "book", "move_appointment", "close_ticket"),
    }
)
"""The tools that change rows."""


def tools_of(num_tables: int) -> tuple[str, ...]:
    """Return the tools of the first tables: 5, with the calendar 6, with tickets 7."""
    calendar = CALENDAR_TOOLS if num_tables >= 6 else ()
    return ORDER_TOOLS + calendar + (TICKET_TOOLS if num_tables >= 7 else ())
