"""The rows of a shop, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .shop import Rows
from .shop.calendar import DAYS, HOURS
from .words import CITIES, FIRST, LAST, PRODUCTS, SUBJECTS

MAX_STOCK = 60


@dataclass(frozen=True, slots=True)
class Size:
    """The number of rows of each kind."""

    customers: int
    orders: int
    """The largest number of orders of a customer."""
    products: int
    namesakes: int = 0
    """The customers who share a first or a last name with another one."""
    appointments: int = 0
    tickets: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """An order in the generator's form."""

    id: int
    customer: int
    status: str
    days: int
    """The days since delivery."""
    city: str
    lines: tuple[tuple[int, int], ...]
    """The pairs of product and quantity."""
    total: int
    paid: int
    refunded: int


def draw(random: random.Random, size: Size) -> World:
    """Draw a world of this size."""
    names = _names(random, size.customers, size.namesakes)
    ids = random.sample(range(10, 100), size.customers)
    customers = [
        (key, name, random.choice(CITIES), random.randrange(10_000, 100_000))
        for key, name in zip(ids, names, strict=True)
    ]
    products = [
        (key, name, random.randrange(10, 400), random.randrange(5, MAX_STOCK))
        for key, name in zip(
            random.sample(range(10, 100), size.products),
            random.sample(PRODUCTS, size.products),
            strict=True,
        )
    ]
    count = [random.randint(1, size.orders) for _ in ids]
    order_ids = random.sample(range(100, 1000), sum(count))
    orders = [
        _order(random, order_ids.pop(), customer, products)
        for customer, many in zip(customers, count, strict=True)
        for _ in range(many)
    ]
    appointments = _appointments(random, ids, size.appointments)
    tickets = _tickets(random, ids, size.tickets)
    return World(customers, products, orders, appointments, tickets)


@dataclass(frozen=True, slots=True)
class World:
    """The rows of a shop; orders are objects that include their lines and payments."""

    customers: list[tuple[int, str, str, int]]
    products: list[tuple[int, str, int, int]]
    orders: list[Order]
    appointments: list[tuple[int, int, int, int]]
    """The appointments: id, customer, day, hour."""
    tickets: list[tuple[int, int, str, str]]
    """The tickets: id, customer, subject, status."""

    def rows(self) -> Rows:
        """Return the rows for `Database.of`."""
        orders, lines, payments = [], [], []
        for order in self.orders:
            orders.append((order.id, order.customer, order.status, order.days, order.city))
            lines += [(order.id, product, quantity) for product, quantity in order.lines]
            if order.paid:
                payments.append((order.id, order.paid, order.refunded))
        rows: dict[str, Sequence[Any]] = {"customers": self.customers, "products": self.products}
        rows |= {"orders": orders, "lines": lines, "payments": payments}
        return rows | {"appointments": self.appointments, "tickets": self.tickets}

    def order(self, key: int) -> Order:
        """Return the order with this id."""
        return next(order for order in self.orders if order.id == key)

    def product_name(self, key: int) -> str:
        """Return the name of the product with this id."""
        return next(name for product, name, *_ in self.products if product == key)

    def name_of(self, customer: int) -> str:
        """Return the name of the customer with this id."""
        return next(name for key, name, *_ in self.customers if key == customer)


def _appointments(
    random: random.Random, customers: list[int], count: int
) -> list[tuple[int, int, int, int]]:
    """Draw appointments: at most one in each hour, and one a day for each customer."""
    days = random.sample(DAYS, min(count, len(DAYS)) // 2 + 1) if count else []
    hours = [(day, hour) for day in days for hour in HOURS]
    found: dict[tuple[int, int], int] = {}
    for day, hour in random.sample(hours, min(count, len(hours))):
        found.setdefault((random.choice(customers), day), hour)
    keys = random.sample(range(100, 1000), len(found))
    return [
        (key, customer, day, hour)
        for key, ((customer, day), hour) in zip(keys, found.items(), strict=True)
    ]


def _tickets(
    random: random.Random, customers: list[int], count: int
) -> list[tuple[int, int, str, str]]:
    """Draw tickets: at most one per customer and subject."""
    about = [(customer, subject) for customer in customers for subject in SUBJECTS]
    found = random.sample(about, min(count, len(about)))
    return [
        (key, customer, subject, random.choice(("open", "open", "closed")))
        for key, (customer, subject) in zip(
            random.sample(range(100, 1000), len(found)), found, strict=True
        )
    ]


def _order(random: random.Random, key: int, customer: Any, products: list[Any]) -> Order:
    status = random.choice(("open", "open", "delivered", "delivered", "shipped", "cancelled"))
    bought = [(p, random.randint(1, 3)) for p in random.sample(products, random.randint(1, 2))]
    total = sum(product[2] * quantity for product, quantity in bought)
    paid = total if status in ("shipped", "delivered") or random.random() < 0.6 else 0
    refunded = paid if status in ("delivered", "cancelled") and random.random() < 0.2 else 0
    return Order(
        id=key,
        customer=customer[0],
        status=status,
        days=random.choice((random.randint(1, 29), random.randint(32, 90)))
        if status == "delivered"
        else 0,
        city=customer[2],
        lines=tuple((product[0], quantity) for product, quantity in bought),
        total=total,
        paid=paid,
        refunded=refunded,
    )


def _names(random: random.Random, count: int, namesakes: int) -> list[str]:
    """Draw names; the last `namesakes` share a first or last name with one of the others."""
    firsts, lasts = random.sample(FIRST, count), random.sample(LAST, count)
    for i in range(count - namesakes, count):
        other = random.randrange(count - namesakes)
        if random.random() < 0.5:
            firsts[i] = firsts[other]
        else:
            lasts[i] = lasts[other]
    return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
