"""The names of customers and orders in a request, and the calls that resolve these names."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .goals import Ask, GoldCall
from .world import Order, World

Open = Literal["", "customer", "order"]
"""The part that a request leaves open, if any."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A customer or an order with its name in the request."""

    id: int
    text: str
    calls: tuple[GoldCall, ...] = ()
    ask: Ask | None = None


class Scene:
    """A request while it is made. `open`: the part that its first goal leaves open."""

    def __init__(self, random: random.Random, world: World, open: Open) -> None:
        self.random = random
        self.world = world
        self.open: Open = open
        self.subject: Spoken | None = None
        """The customer that was named last."""

    def who(self, customer: int | None = None) -> Spoken | None:
        """Name a customer, or the one with this id; None if no name is as open as required."""
        if self.subject and self.subject.id == customer:
            return self.subject
        if customer is None:
            if self.subject and self.random.random() < 0.6:
                return self.subject
            customer = self.random.choice(self.world.customers)[0]
        spoken = self._named(customer)
        if spoken is not None:
            self.subject = Spoken(customer, "the same customer", spoken.calls)
        return spoken

    def order(self, fits: Callable[[Order], bool], *, bare: float = 0.2) -> Spoken | None:
        """Draw and name an order that `fits`; with probability `bare` only by its number."""
        found = [order for order in self.world.orders if fits(order)]
        if not found:
            return None
        order = self.random.choice(found)
        if not self.open and self.random.random() < bare:
            self.subject = None  # "the same customer" would mean that order's customer
            return Spoken(order.id, f"order {order.id}")
        thing = self._telling(order)
        who = self.who(order.customer)
        if thing is None or who is None:
            return None
        calls = (*who.calls, GoldCall("list_orders", {"customer": order.customer}))
        if self.open != "order":
            return Spoken(order.id, f"the order of {who.text} with the {thing}", calls, who.ask)
        among = frozenset(str(each.id) for each in self._orders(order.customer))
        if len(among) < 2:
            return None
        question, reply = "Which of the orders do you mean?", f"The one with the {thing}."
        ask = Ask(among, len(calls), question, reply)
        return Spoken(order.id, f"the order of {who.text}", calls, ask)

    def _named(self, customer: int) -> Spoken | None:
        name, city = next((n, c) for key, n, c, _ in self.world.customers if key == customer)
        first = name.split()[0]
        namesakes = {
            key: c
            for key, n, c, _ in self.world.customers
            if n.split()[0] == first and key != customer
        }
        is_distinct = city not in namesakes.values()
        by_first = (GoldCall("find_customer", {"name": first}),)
        if self.open == "customer":
            if not namesakes or not is_distinct:
                return None
            among = frozenset(map(str, [customer, *namesakes]))
            question, reply = f"Which {first} do you mean?", f"The {first} from {city}."
            return Spoken(customer, first, by_first, Ask(among, 1, question, reply))
        if is_distinct and self.random.random() < (0.7 if namesakes else 0.2):
            return Spoken(customer, f"{first} from {city}", by_first)
        return Spoken(customer, name, (GoldCall("find_customer", {"name": name}),))

    def _telling(self, order: Order) -> str | None:
        """Draw a product that only this one of the customer's orders has."""
        others = {p for o in self._orders(order.customer) if o != order for p, _ in o.lines}
        own = [product for product, _ in order.lines if product not in others]
        return self.world.product_name(self.random.choice(own)) if own else None

    def _orders(self, customer: int) -> list[Order]:
        return [order for order in self.world.orders if order.customer == customer]
