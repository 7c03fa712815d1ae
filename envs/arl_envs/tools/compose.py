"""The requests of several goals, with irrelevant sentences between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import about_orders, about_people
from .goals import Goal
from .levels import Level
from .scene import Open, Scene
from .shop.rules import attempt_of
from .world import World

Kind = Callable[[Scene, bool], Goal | None]

KINDS: dict[int, tuple[Kind, ...]] = {
    5: (
        *(about_orders.cancel, about_orders.ship, about_orders.refund, about_orders.refund_part),
        *(about_orders.change_city, about_orders.add_item, about_orders.total, about_orders.paid),
        *(about_people.create_order, about_people.price, about_people.phone),
        about_people.set_phone,
    ),
    6: (about_people.book, about_people.book_first, about_people.move),
    7: (about_people.close_ticket,),
}
"""The kinds of goals by the number of tables that they need."""

ASIDES = (
    "{name} from {city} called about order {order}, but that is settled.",
    "The parcel to {city} is none of our concern.",
    "By the way, {name} says thank you.",
    "I asked about a {product} yesterday; forget it.",
    "Order {order} is as it should be.",
    "Our {product} is in the window again.",
)
_TRIES = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """The properties of a request, drawn first: so requests that are hard to make are not rarer."""

    num_calls: int
    open: Open
    refused: bool

    @classmethod
    def draw(cls, random: random.Random, level: Level) -> Plan:
        """Draw a plan with the shares of the level. An open customer needs two calls, an open order
        three."""
        num_calls = random.randint(*level.num_calls)
        can_be: tuple[Open, ...] = ("customer", "order") if num_calls > 2 else ("customer",)
        is_open = num_calls > 1 and random.random() < level.ambiguity
        left: Open = random.choice(can_be) if is_open else ""
        return cls(num_calls, left, random.random() < level.impossible)


def composed(
    random: random.Random, world: World, plan: Plan, level: Level
) -> tuple[str, list[Goal]] | None:
    """Draw a request and its goals; None if this draw does not fit the plan."""
    scene = Scene(random, world, plan.open)
    goals = _goals(scene, plan, level)
    if goals is None:
        return None
    touched = frozenset[object]().union(*(goal.touches for goal in goals))
    words = random.sample(ASIDES, level.distractors)
    asides = [_aside(text, random, world, touched) for text in words]
    cut = random.randint(0, len(asides))
    parts = [*asides[:cut], *(goal.text for goal in goals), *asides[cut:]]
    return " ".join(text[0].upper() + text[1:] for text in parts), goals


def _goals(scene: Scene, plan: Plan, level: Level) -> list[Goal] | None:
    """Draw goals with the planned number of calls, with a refused one if planned; else None."""
    kinds = [
        kind for tables, found in KINDS.items() if tables <= level.num_tables for kind in found
    ]
    goals: list[Goal] = []
    for _ in range(_TRIES):
        subject = scene.subject
        missing = plan.refused and not any(goal.refused for goal in goals)
        goal = scene.random.choice(kinds)(scene, missing and scene.random.random() < 0.5)
        left_open = scene.open and goal and not goal.ask
        if goal is None or left_open or not _fits([*goals, goal], plan.num_calls):
            scene.subject = subject
            continue
        goals.append(goal)
        scene.open = ""
        if _num_calls(goals) == plan.num_calls:
            return goals if not plan.refused or any(goal.refused for goal in goals) else None
    return None


def _fits(goals: Sequence[Goal], num_calls: int) -> bool:
    *others, last = goals
    free = all(last.touches.isdisjoint(other.touches) for other in others)
    return free and _num_calls(goals) <= num_calls


def _num_calls(goals: Sequence[Goal]) -> int:
    return len({attempt_of(call.tool, call.arguments) for goal in goals for call in goal.calls})


def _aside(text: str, random: random.Random, world: World, touched: frozenset[object]) -> str:
    """Fill in a sentence, true or not, that requests nothing and names no order or product of the
    goals."""
    orders = [o.id for o in world.orders if ("order", o.id) not in touched]
    products = [
        name for key, name, *_ in world.products if not touched & {("product", key), ("price", key)}
    ]
    return text.format(
        name=random.choice(world.customers)[1],
        city=random.choice(world.customers)[2],
        order=random.choice(orders or [99]),
        product=random.choice(products or ["vase"]),
    )
