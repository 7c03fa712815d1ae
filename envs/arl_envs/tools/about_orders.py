"""The goals about an existing order; level 1 has one, of a customer whose full name is given."""

from __future__ import annotations

import random
from typing import Any

from .goals import Goal, GoldCall
from .scene import Scene, Spoken
from .words import CITIES
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


def cancel(scene: Scene, refused: bool) -> Goal | None:
    """Draw a cancellation of an order, which must be open."""
    order = scene.order(lambda o: allowed("cancel_order", o) is not refused)
    words = "cancel {o}.|call off {o}.|{o} is not wanted any more: cancel it."
    return order and about(scene, order, words, "cancel_order", refused=refused)


def ship(scene: Scene, refused: bool) -> Goal | None:
    """Draw a shipment of an order, which must be open and paid."""
    order = scene.order(lambda o: allowed("ship_order", o) is not refused)
    words = "ship {o}.|send {o} out.|{o} can be sent."
    return order and about(scene, order, words, "ship_order", refused=refused)


def refund(scene: Scene, refused: bool) -> Goal | None:
    """Draw a refund of the full amount paid for an order."""
    order = scene.order(lambda o: allowed("refund_order", o) is not refused)
    words = "refund {o}.|pay {o} back in full.|give all the money for {o} back."
    return order and about(scene, order, words, "refund_order", refused=refused)


def refund_part(scene: Scene, refused: bool) -> Goal | None:
    """Draw a partial refund; if `refused`, of more than is left of the payment."""
    order = scene.order(lambda o: allowed("refund_order", o))
    if order is None:
        return None
    found = scene.world.order(order.id)
    left = found.paid - found.refunded
    amount = left + scene.random.randint(1, 99) if refused else scene.random.randint(1, left)
    words = "pay {x} of {o} back.|refund {x} for {o}.|give {x} back for {o}."
    return about(scene, order, words, "refund_part", {"amount": amount}, refused=refused, x=amount)


def change_city(scene: Scene, refused: bool) -> Goal | None:
    """Draw another city for an order, which must be open."""
    order = scene.order(lambda o: (o.status == "open") is not refused)
    if order is None:
        return None
    old = scene.world.order(order.id).city
    city = scene.random.choice([city for city in CITIES if city != old])
    words = "send {o} to {x} instead.|{o} has to go to {x}.|change the city of {o} to {x}."
    return about(scene, order, words, "change_city", {"city": city}, refused=refused, x=city)


def total(scene: Scene, refused: bool) -> Goal | None:
    """Draw a question about the total of an order."""
    order = scene.order(lambda o: True)
    words = "what is the total of {o}?|how much is {o}?|tell me the total of {o}."
    if order is None or refused:
        return None
    return about(scene, order, words, "get_order", fact=r"total (\d+)")


def paid(scene: Scene, refused: bool) -> Goal | None:
    """Draw a question about the amount paid for an order."""
    order = scene.order(lambda o: o.paid > 0)
    words = "how much was paid for {o}?|tell me what was paid for {o}."
    if order is None or refused:
        return None
    return about(scene, order, words, "get_order", fact=r"paid (\d+)")


def add_item(scene: Scene, refused: bool) -> Goal | None:
    """Draw an addition of a product to an order; if `refused`, of more than is in stock."""
    order = scene.order(lambda o: o.status == "open")
    if order is None:
        return None
    product, name, _, stock = scene.random.choice(scene.world.products)
    many = stock + scene.random.randint(5, 30) if refused else scene.random.randint(1, 3)
    return about(
        scene,
        order,
        "add {x} to {o}.|{o} shall have {x} more.|put {x} into {o}.",
        "add_item",
        {"product": product, "quantity": many},
        before=(GoldCall("find_product", {"name": name}),),
        refused=refused,
        x=f"{many} {name}",
    )


def about(
    scene: Scene,
    order: Spoken,
    words: str,
    tool: str,
    arguments: dict[str, Any] | None = None,
    *,
    before: tuple[GoldCall, ...] = (),
    refused: bool = False,
    fact: str = "",
    x: object = "",
) -> Goal:
    """Make a goal: `words` are phrasings with the order as {o} and another detail as {x}."""
    call = GoldCall(tool, {"order": order.id, **(arguments or {})})
    found = scene.world.order(order.id)
    return Goal(
        text=scene.random.choice(words.split("|")).format(o=order.text, x=x),
        calls=(*order.calls, *before, call),
        fact=fact,
        refused=refused,
        touches=_touched(found, arguments or {}),
        ask=order.ask,
    )


def _touched(order: Order, arguments: dict[str, Any]) -> frozenset[object]:
    """Return the order and the products whose stock may change with it."""
    products = {product for product, _ in order.lines} | {arguments.get("product")} - {None}
    return frozenset({("order", order.id), *(("product", product) for product in products)})
