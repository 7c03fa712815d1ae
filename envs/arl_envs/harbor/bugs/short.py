"""Short modules for level 1: one function of a few lines, in very many variants."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .program import Program, call

NUM_SHOWN, NUM_HIDDEN = 3, 16
THINGS = (
    ("items", "item"),
    ("values", "value"),
    ("numbers", "number"),
    ("scores", "score"),
    ("prices", "price"),
    ("sizes", "size"),
    ("points", "point"),
    ("marks", "mark"),
)
RESULTS = ("total", "result", "answer", "out")
LIMITS = ("limit", "bound", "cap", "level")
MODULES = ("tally", "ledger", "meter", "shelf", "scale", "chart", "stock", "panel")

Names = dict[str, Any]
Inputs = Callable[[random.Random, Names], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Short:
    """A short function: its text with names left open, and how its arguments are drawn."""

    name: str
    text: str
    inputs: Inputs


def _list(rng: random.Random, around: int) -> list[int]:
    return [around + rng.randint(-3, 3) for _ in range(rng.randint(0, 6))]


def _near(rng: random.Random, *places: int) -> int:
    return rng.choice(places) + rng.randint(-1, 1)


def _xs_and_limit(rng: random.Random, names: Names) -> Sequence[Any]:
    limit = rng.randint(1, 9)
    return _list(rng, limit), limit


def _xs_around_k(rng: random.Random, names: Names) -> Sequence[Any]:
    return (_list(rng, names["k"]),)


def _low_high(rng: random.Random, names: Names) -> Sequence[Any]:
    low = rng.randint(0, 9)
    high = low + rng.randint(0, 9)
    return _near(rng, low, high, high + 5), low, high


def _number(rng: random.Random, names: Names) -> Sequence[Any]:
    return (rng.randint(0, 60),)


def _number_at_k(rng: random.Random, names: Names) -> Sequence[Any]:
    return (_near(rng, names["k"], names["k"] + names["m"], 0, 40),)


def _two_lists(rng: random.Random, names: Names) -> Sequence[Any]:
    size = rng.randint(0, 4)
    return [rng.randint(-9, 9) for _ in range(size)], _list(rng, 5)


def _text(rng: random.Random, names: Names) -> Sequence[Any]:
    return ("".join(rng.choice("aabbc") for _ in range(rng.randint(0, 8))),)


SHORTS = (
    Short(
        "sum_above",
        '''\
def {f}({xs}, {limit}):
    """Start at {k} and add each {x} above {limit}."""
    {out} = {k}
    for {x} in {xs}:
        if {x} > {limit}:
            {out} += {x}
    return {out}
''',
        _xs_and_limit,
    ),
    Short(
        "count_up_to",
        '''\
def {f}({xs}):
    """Count each {x} of at most {k}, by {m}."""
    {out} = 0
    for {x} in {xs}:
        if {x} <= {k}:
            {out} += {m}
    return {out}
''',
        _xs_around_k,
    ),
    Short(
        "highest",
        '''\
def {f}({xs}):
    """Return the largest {x}, at least {k}, times {m}."""
    {out} = {k}
    for {x} in {xs}:
        if {x} > {out}:
            {out} = {x}
    return {out} * {m}
''',
        _xs_around_k,
    ),
    Short(
        "lowest",
        '''\
def {f}({xs}):
    """Return the smallest {x}, at most {k}, minus {m}."""
    {out} = {k}
    for {x} in {xs}:
        {out} = min({out}, {x})
    return {out} - {m}
''',
        _xs_around_k,
    ),
    Short(
        "keep_between",
        '''\
def {f}({x}, low, {limit}):
    """Keep {x} from low to {limit}, then add {k}."""
    if {x} < low:
        return low + {k}
    if {x} > {limit}:
        return {limit} + {k}
    return {x} + {k}
''',
        _low_high,
    ),
    Short(
        "scale_all",
        '''\
def {f}({xs}):
    """Return each {x} times {m} plus {n}, if it is below {k}."""
    {out} = []
    for {x} in {xs}:
        if {x} < {k}:
            {out}.append({x} * {m} + {n})
    return {out}
''',
        _xs_around_k,
    ),
    Short(
        "count_down",
        '''\
def {f}({x}):
    """List {x} and what is left, by steps of {m}, while above {k}."""
    {out} = []
    while {x} > {k}:
        {out}.append({x})
        {x} -= {m}
    return {out}
''',
        _number,
    ),
    Short(
        "digit_sum",
        '''\
def {f}({x}):
    """Start at {n} and add the digits of {x} in base {m}."""
    {out} = {n}
    while {x} > 0:
        {out} += {x} % {m}
        {x} = {x} // {m}
    return {out}
''',
        _number,
    ),
    Short(
        "first_above",
        '''\
def {f}({xs}, {limit}):
    """Return the first place of a {x} above {limit}, or {n}."""
    place = 0
    for {x} in {xs}:
        if {x} > {limit}:
            return place
        place += 1
    return {n}
''',
        _xs_and_limit,
    ),
    Short(
        "fee",
        '''\
def {f}({x}):
    """Add a fee of {m} to a {x} below {k}, else of {n}."""
    {out} = {x}
    if {x} < {k}:
        {out} += {m}
    else:
        {out} += {n}
    return {out}
''',
        _number_at_k,
    ),
    Short(
        "grade",
        '''\
def {f}({x}):
    """Return 2 for a {x} of {k} + {m} or more, 1 from {k} on, else 0."""
    if {x} >= {k} + {m}:
        return 2
    if {x} >= {k}:
        return 1
    return 0
''',
        _number_at_k,
    ),
    Short(
        "weigh",
        '''\
def {f}({xs}, others):
    """Return {m} times all {xs} minus all others, at least {k}."""
    {out} = 0
    for {x} in {xs}:
        {out} += {x} * {m}
    for {x} in others:
        {out} -= {x}
    return max({out}, {k})
''',
        _two_lists,
    ),
    Short(
        "climbs",
        '''\
def {f}({xs}):
    """Count by {m} how often a {x} is larger than the one before, first {k}."""
    {out} = 0
    last = {k}
    for {x} in {xs}:
        if {x} > last:
            {out} += {m}
        last = {x}
    return {out}
''',
        _xs_around_k,
    ),
    Short(
        "budget",
        '''\
def {f}({xs}, {limit}):
    """Count the first {xs} that cost at most {limit} times {m} together."""
    {out} = 0
    left = {limit} * {m}
    for {x} in {xs}:
        if {x} <= left:
            {out} += 1
            left -= {x}
    return {out}
''',
        _xs_and_limit,
    ),
    Short(
        "count_letter",
        '''\
def {f}(text):
    """Return {k} plus {m} for each a of the text minus {n} for each b."""
    {out} = {k}
    for {x} in text:
        if {x} == "a":
            {out} += {m}
        if {x} == "b":
            {out} -= {n}
    return {out}
''',
        _text,
    ),
)


def short_program(variant: int) -> Program:
    """Return the short program of a number: its family, names, constants and cases."""
    rng = random.Random(f"arl-bugs/short/{variant}")
    short = rng.choice(SHORTS)
    xs, x = rng.choice(THINGS)
    names: Names = {"f": short.name, "xs": xs, "x": x, "out": rng.choice(RESULTS)}
    names["limit"] = rng.choice(LIMITS)
    names["k"], names["m"], names["n"] = rng.sample(range(3, 10), 3)
    module = rng.choice(MODULES)
    text = short.text.format(**names)
    target = f"{module}:{short.name}"
    drawn = [[call(target, *short.inputs(rng, names))] for _ in range(NUM_SHOWN + NUM_HIDDEN)]
    shown = {f"test_{short.name}": drawn[:NUM_SHOWN]}
    about = f"The module {module} has the function {short.name}."
    return Program(short.name, about, {f"{module}.py": text}, shown, drawn[NUM_SHOWN:])
