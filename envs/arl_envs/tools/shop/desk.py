"""All tools of the shop."""

from __future__ import annotations

from .calendar import Calendar
from .customers import Customers
from .sales import Sales
from .tickets import Tickets


class Desk(Customers, Sales, Calendar, Tickets):
    """The tools; an environment offers them, and the generator of tasks works with them."""


ORDER_TOOLS = (
    *("find_customer", "get_customer", "set_phone", "list_orders", "find_order", "get_order"),
    *("cancel_order", "ship_order", "refund_order", "refund_part", "change_city"),
    *("find_product", "add_item", "create_order"),
)
"""Of the first five tables."""
CALENDAR_TOOLS = ("free_hours", "list_appointments", "book", "move_appointment")
TICKET_TOOLS = ("list_tickets", "close_ticket")

WRITES = frozenset(
    {
        *("set_phone", "cancel_order", "ship_order", "refund_order", "refund_part", "change_city"),
        *("add_item", "create_order", "book", "move_appointment", "close_ticket"),
    }
)
"""Tools that change something."""


def tools_of(num_tables: int) -> tuple[str, ...]:
    """The tools of the first so many tables: 5, with the calendar 6, with tickets 7."""
    calendar = CALENDAR_TOOLS if num_tables >= 6 else ()
    return ORDER_TOOLS + calendar + (TICKET_TOOLS if num_tables >= 7 else ())
