"""The requests of level 1: one order of a customer whose full name is given."""

from __future__ import annotations

import random

from .goals import Goal, GoldCall
from .world import Order, World

WORDS = {
    "cancel_order": (
        "Cancel the order of {name}.",
        "{name} wants to cancel.",
        "{name} does not need the order any more.",
    ),
    "ship_order": ("Ship the order of {name}.", "Send {name} the order.", "{name} can be sent."),
    "refund_order": (
        "Refund the order of {name}.",
        "Pay {name} back.",
        "{name} wants the money back.",
    ),
    "get_order": (
        "What is the total of {name}?",
        "How much is the order of {name}?",
        "What does {name} pay in total?",
    ),
}


def allowed(tool: str, order: Order) -> bool:
    """Return whether the shop's rules allow this (the tools themselves decide in the end)."""
    if tool == "cancel_order":
        return order.status == "open"
    if tool == "ship_order":
        return order.status == "open" and order.paid == order.total
    if tool == "refund_order":
        late = order.status == "delivered" and order.days > 30
        sent = order.status in ("delivered", "cancelled")
        return sent and not late and order.paid > order.refunded
    return True


def by_name(random: random.Random, world: World) -> tuple[str, list[Goal]] | None:
    """Draw a request and its goal; None if no order fits the drawn tool."""
    tool = random.choice(list(WORDS))
    found = [order for order in world.orders if allowed(tool, order)]
    if not found:
        return None
    order = random.choice(found)
    name = world.name_of(order.customer)
    goal = Goal(
        text=random.choice(WORDS[tool]).format(name=name),
        calls=(GoldCall("find_order", {"name": name}), GoldCall(tool, {"order": order.id})),
        fact=r"total (\d+)" if tool == "get_order" else "",
    )
    return goal.text, [goal]
