"""The goals about a customer, a product, the calendar or a ticket."""

from __future__ import annotations

from typing import Any

from .goals import Goal, GoldCall
from .scene import Scene, Spoken
from .shop.calendar import DAYS, HOURS
from .shop.customers import PHONES


def create_order(scene: Scene, refused: bool) -> Goal | None:
    """Draw a new order, whose number is the answer; if `refused`, of more than is in stock."""
    who = scene.who()
    product, name, _, stock = scene.random.choice(scene.world.products)
    many = stock + scene.random.randint(5, 30) if refused else scene.random.randint(1, 4)
    return who and _about(
        scene,
        who,
        "order {x} for {w} and tell me the number of the order.|"
        "{w} wants {x}: place an order, and say its number.",
        GoldCall("create_order", {"customer": who.id, "product": product, "quantity": many}),
        before=(GoldCall("find_product", {"name": name}),),
        refused=refused,
        fact=r"order (\d+)",
        touches={"create", ("product", product)},
        x=f"{many} {name}",
    )


def price(scene: Scene, refused: bool) -> Goal | None:
    """Draw a question about the price of a product."""
    if refused or scene.open:
        return None
    product, name, *_ = scene.random.choice(scene.world.products)
    words = ("what is the price of the {}?", "how much is a {}?", "tell me the price of the {}.")
    return Goal(
        text=scene.random.choice(words).format(name),
        calls=(GoldCall("find_product", {"name": name}),),
        fact=r"price (\d+)",
        touches=frozenset({("price", product)}),
    )


def phone(scene: Scene, refused: bool) -> Goal | None:
    """Draw a question about the phone number of a customer."""
    who = scene.who()
    if who is None or refused:
        return None
    words = "what is the phone number of {w}?|which phone number has {w}?|tell me the phone of {w}."
    call = GoldCall("get_customer", {"customer": who.id})
    return _about(scene, who, words, call, fact=r"phone (\d+)", touches={("phone", who.id)})


def set_phone(scene: Scene, refused: bool) -> Goal | None:
    """Draw a change of a phone number to one that the request gives."""
    who = scene.who()
    if who is None or refused:
        return None
    number = scene.random.choice(PHONES)
    return _about(
        scene,
        who,
        "the new phone number of {w} is {x}.|change the phone of {w} to {x}.",
        GoldCall("set_phone", {"customer": who.id, "phone": number}),
        touches={("phone", who.id)},
        x=number,
    )


def book(scene: Scene, refused: bool) -> Goal | None:
    """Draw an appointment at an hour that the request gives; if `refused`, the hour is taken."""
    who = scene.who()
    slot = _slot(scene, refused)
    if who is None or slot is None:
        return None
    day, hour = slot
    return _about(
        scene,
        who,
        "book {w} in on {x}.|{w} needs an appointment on {x}.|make {w} an appointment for {x}.",
        GoldCall("book", {"customer": who.id, "day": day, "hour": hour}),
        refused=refused,
        touches={"book", ("day", day)},
        x=f"day {day} at {hour}",
    )


def book_first(scene: Scene, refused: bool) -> Goal | None:
    """Draw an appointment at the first free hour of a day, which the agent must find."""
    who = scene.who()
    if who is None or refused:
        return None
    day = scene.random.choice([day for _, _, day, _ in scene.world.appointments] or [*DAYS])
    taken = {hour for _, _, other, hour in scene.world.appointments if other == day}
    free = [hour for hour in HOURS if hour not in taken]
    words = "book {w} in at the first free hour of {x}.|{w} needs the earliest free hour of {x}."
    return _about(
        scene,
        who,
        words,
        GoldCall("book", {"customer": who.id, "day": day, "hour": free[0] if free else -1}),
        before=(GoldCall("free_hours", {"day": day}),),
        touches={"book", ("day", day)},
        x=f"day {day}",
    )


def move(scene: Scene, refused: bool) -> Goal | None:
    """Draw a move of an existing appointment, which the request names by its day."""
    slot = _slot(scene, refused)
    if not scene.world.appointments or slot is None:
        return None
    key, customer, old, hour = scene.random.choice(scene.world.appointments)
    who = scene.who(customer)
    if who is None or slot == (old, hour):
        return None
    day, hour = slot
    return _about(
        scene,
        who,
        "move the appointment of {w} on day {y} to {x}.|"
        "{w} cannot come on day {y}: move that appointment to {x}.",
        GoldCall("move_appointment", {"appointment": key, "day": day, "hour": hour}),
        before=(GoldCall("list_appointments", {"customer": customer}),),
        refused=refused,
        touches={("day", old), ("day", day), ("appointment", key)},
        x=f"day {day} at {hour}",
        y=old,
    )


def close_ticket(scene: Scene, refused: bool) -> Goal | None:
    """Draw the closing of a ticket, named by its subject; if `refused`, it is closed already."""
    found = [t for t in scene.world.tickets if (t[3] == "open") is not refused]
    if not found:
        return None
    key, customer, subject, _ = scene.random.choice(found)
    who = scene.who(customer)
    words = "close the ticket of {w} about the {x}.|the {x} of {w} is dealt with: close the ticket."
    return who and _about(
        scene,
        who,
        words,
        GoldCall("close_ticket", {"ticket": key}),
        before=(GoldCall("list_tickets", {"customer": customer}),),
        refused=refused,
        touches={("ticket", key)},
        x=subject,
    )


def _slot(scene: Scene, taken: bool) -> tuple[int, int] | None:
    """Draw a day and an hour that are taken, or free."""
    busy = [(day, hour) for _, _, day, hour in scene.world.appointments]
    if taken:
        return scene.random.choice(busy) if busy else None
    slot = (scene.random.choice(DAYS), scene.random.choice(HOURS))
    return None if slot in busy else slot


def _about(
    scene: Scene,
    who: Spoken,
    words: str,
    call: GoldCall,
    *,
    before: tuple[GoldCall, ...] = (),
    refused: bool = False,
    fact: str = "",
    touches: set[Any],
    x: object = "",
    y: object = "",
) -> Goal:
    """Make a goal: `words` are phrasings with the customer as {w}, other details as {x}, {y}."""
    return Goal(
        text=scene.random.choice(words.split("|")).format(w=who.text, x=x, y=y),
        calls=(*who.calls, *before, call),
        fact=fact,
        refused=refused,
        touches=frozenset(touches),
        ask=who.ask,
    )
