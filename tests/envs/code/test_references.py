"""The reference solutions against slow ones that follow the statements word by word."""

from __future__ import annotations

import copy
import heapq
import itertools
import random
import re
from collections.abc import Callable
from typing import Any

from arl_envs.code.families import FAMILIES, Draw

from tests.kit.cases import cases

ORACLES: dict[str, tuple[Callable[..., Any], int]] = {}
"""By family: another solution, and the largest size of the inputs that it is fast enough for."""

Pairs = list[list[int]]


def oracle(size: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        ORACLES[function.__name__] = (function, size)
        return function

    return add


def subsets(items: list[Any]) -> list[tuple[Any, ...]]:
    return [s for k in range(len(items) + 1) for s in itertools.combinations(items, k)]


@oracle(10)
def count_paths(grid: list[str], *, reach: int, moves: str) -> int:
    def ways(i: int, j: int) -> int:
        if i >= len(grid) or j >= len(grid[0]) or grid[i][j] == "#":
            return 0
        if i == len(grid) - 1 and j == len(grid[0]) - 1:
            return 1
        kinds = [(0, 1), (1, 0), (1, 1)] if "diagonally" in moves else [(0, 1), (1, 0)]
        return sum(ways(i + k * y, j + k * x) for y, x in kinds for k in range(1, reach + 1))

    return ways(0, 0) if grid else 0


@oracle(8)
def count_change(coins: list[int], amount: int, *, limit: int) -> int:
    times = itertools.product(range(limit + 1), repeat=len(coins))
    return sum(sum(map(int.__mul__, coins, counts)) == amount for counts in times)


@oracle(9)
def find_best_climb(numbers: list[int], *, low: int, high: int) -> int:
    return max(
        sum(chosen)
        for chosen in subsets(numbers)
        if all(low <= b - a <= high for a, b in itertools.pairwise(chosen))
    )


@oracle(8)
def find_edit_cost(first: str, second: str, *, insert: int, delete: int, change: int) -> int:
    waiting, done = [(0, first)], set[str]()
    while waiting:
        cost, word = heapq.heappop(waiting)
        if word == second:
            return cost
        if word in done or len(word) > max(len(first), len(second)):
            continue
        done.add(word)
        for i in range(len(word) + 1):
            head, tail, rest = word[:i], word[i:], word[i + 1 :]
            for letter in "abc":
                heapq.heappush(waiting, (cost + insert, head + letter + tail))
                if tail:
                    heapq.heappush(waiting, (cost + change, head + letter + rest))
                    heapq.heappush(waiting, (cost + delete, head + rest))
    raise AssertionError


@oracle(10)
def pack_bag(weights: list[int], values: list[int], *, capacity: int, copies: int) -> int:
    times = itertools.product(range(copies + 1), repeat=len(weights))
    fitting = [t for t in times if sum(map(int.__mul__, weights, t)) <= capacity]
    return max(sum(map(int.__mul__, values, t)) for t in fitting)


@oracle(10)
def pick_apart(numbers: list[int], *, gap: int, most: int) -> int:
    return max(
        sum(numbers[i] for i in chosen)
        for chosen in subsets(list(range(len(numbers))))
        if len(chosen) <= most and all(b - a >= gap for a, b in itertools.pairwise(chosen))
    )


@oracle(12)
def count_decodings(digits: str, *, highest: int) -> int:
    count = 0
    for cuts in subsets(list(range(1, len(digits)))):
        ends = [0, *cuts, len(digits)]
        parts = [digits[a:b] for a, b in itertools.pairwise(ends)] if digits else []
        count += all(p[0] != "0" and 1 <= int(p) <= highest for p in parts)
    return count


@oracle(6)
def join_piles(piles: list[int], *, left: int, right: int) -> int:
    if len(piles) < 2:
        return 0
    return min(
        left * piles[i]
        + right * piles[i + 1]
        + join_piles([*piles[:i], piles[i] + piles[i + 1], *piles[i + 2 :]], left=left, right=right)
        for i in range(len(piles) - 1)
    )


@oracle(8)
def count_fillings(pattern: str, *, letters: str, longest: int) -> int:
    choices = [letters if c == "?" else c for c in pattern]
    too_long = re.compile(r"(.)\1{" + str(longest) + "}")
    return sum(not too_long.search("".join(text)) for text in itertools.product(*choices))


@oracle(16)
def plan_jobs(jobs: Pairs, *, rest: int) -> int:
    return max(
        sum(pay for _, _, pay in chosen)
        for chosen in subsets(sorted(jobs))
        if all(b[0] >= a[1] + rest for a, b in itertools.pairwise(chosen))
    )


@oracle(7)
def play_row(numbers: list[int], *, most: int, side: str) -> int:
    def lead(row: list[int]) -> int:
        turns = [(row[:k], row[k:]) for k in range(1, min(most, len(row)) + 1)]
        if side == "either end":
            turns += [(row[-k:], row[:-k]) for k in range(1, min(most, len(row)) + 1)]
        return max((sum(taken) - lead(left) for taken, left in turns), default=0)

    return lead(numbers)


def closure(nodes: int, edges: Pairs) -> list[set[int]]:
    """For each node, what it is connected with."""
    pairs = [*edges, *([b, a] for a, b in edges), *([i, i] for i in range(nodes))]
    linked = [[[i, j] in pairs for j in range(nodes)] for i in range(nodes)]
    for k, i, j in itertools.product(range(nodes), repeat=3):
        linked[i][j] |= linked[i][k] and linked[k][j]
    return [{j for j in range(nodes) if row[j]} for row in linked]


@oracle(10)
def list_groups(nodes: int, edges: Pairs, *, least: int, shape: str) -> list[int]:
    groups = {frozenset(group) for group in closure(nodes, edges)}
    counts = {group: sum(edge[0] in group for edge in edges) for group in groups}
    fits = int.__lt__ if shape.startswith("fewer") else int.__ge__
    return sorted(len(g) for g in groups if len(g) >= least and fits(counts[g], len(g)))


@oracle(9)
def find_contradictions(nodes: int, edges: Pairs, *, modulus: int) -> list[int]:
    worlds = list(itertools.product(range(modulus), repeat=nodes))
    dropped: list[int] = []
    for i, (a, b, d) in enumerate(edges):
        possible = [w for w in worlds if (w[b] - w[a]) % modulus == d % modulus]
        worlds = possible or worlds
        dropped += [] if possible else [i]
    return dropped


@oracle(6)
def connect_nodes(nodes: int, edges: Pairs, *, groups: int, best: str) -> int:
    totals: list[int] = []
    for chosen in subsets(edges):
        pairs = [[a, b] for a, b, _ in chosen]
        left = len({frozenset(group) for group in closure(nodes, pairs)})
        if left == groups == nodes - len(chosen):
            totals.append(sum(w for _, _, w in chosen))
    return (min if best == "smallest" else max)(totals, default=-1)


@oracle(8)
def list_bridges(nodes: int, edges: Pairs, *, first: int, second: int) -> list[int]:
    bridges: list[int] = []
    for i, (a, b) in enumerate(edges):
        linked = closure(nodes, edges[:i] + edges[i + 1 :])
        if b not in linked[a] and len(linked[a]) >= first and len(linked[b]) >= second:
            bridges.append(i)
    return bridges


@oracle(16)
def find_distances(nodes: int, edges: Pairs, *, back: int, limit: int) -> list[int]:
    times = [0] + [limit + 1] * (nodes - 1)
    for _ in range(nodes):
        for a, b in edges:
            times[b] = min(times[b], times[a] + 1)
            times[a] = min(times[a], times[b] + back)
    return [time if time <= limit else -1 for time in times][:nodes]


@oracle(6)
def find_cheapest_route(nodes: int, edges: Pairs, *, most: int, ways: str) -> int:
    both = edges + [[b, a, w] for a, b, w in edges] if ways == "in both directions" else edges

    def costs(node: int, left: int) -> list[int]:
        found = [0] if node == nodes - 1 else []
        onward = [(b, w) for a, b, w in both if a == node] if left else []
        return found + [w + cost for b, w in onward for cost in costs(b, left - 1)]

    return min(costs(0, most), default=-1)


@oracle(24)
def count_descendants(parents: list[int], *, low: int, high: int) -> list[int]:
    def below(node: int, levels: int) -> int:
        children = [i for i, parent in enumerate(parents) if parent == node]
        return (low <= levels <= high) + sum(below(child, levels + 1) for child in children)

    return [below(node, 0) for node in range(len(parents))]


@oracle(9)
def count_walks(nodes: int, edges: Pairs, *, length: int, ways: str) -> list[int]:
    both = edges + [[b, a] for a, b in edges] if ways == "in both directions" else edges

    def walks(node: int, left: int) -> int:
        return sum(walks(b, left - 1) for a, b in both if a == node) if left else 1

    return [walks(node, length) for node in range(nodes)]


@oracle(24)
def find_bracket_error(text: str, *, kinds: str, deepest: int) -> int:
    pairs = [kinds[i : i + 2] for i in range(0, len(kinds), 2)]

    def left_open(start: str) -> str:
        kept = "".join(c for c in start if c in kinds)
        while any(pair in kept for pair in pairs):
            for pair in pairs:
                kept = kept.replace(pair, "")
        return kept

    for i in range(len(text)):
        kept = left_open(text[: i + 1])
        if len(kept) > deepest or any(pair[1] in kept for pair in pairs):
            return i
    return len(text) if left_open(text) else -1


@oracle(24)
def expand_text(text: str, *, place: str, default: int) -> str:
    group = r"(\d*)\(([a-z]*)\)()" if place == "before" else r"()\(([a-z]*)\)(\d*)"
    single = r"(\d*)([a-z])()" if place == "before" else r"()([a-z])(\d*)"

    def repeat(match: re.Match[str]) -> str:
        return match[2] * int(match[1] or match[3] or default)

    def row(match: re.Match[str]) -> str:
        return match[1] + re.sub(single, repeat, match[2]).upper() + match[3]

    # Capitals have been repeated already.
    while "(" in text:
        text = re.sub(r"(\()([^()]*)(\))", row, text)
        text = re.sub(group.replace("a-z", "A-Z"), repeat, text)
    return re.sub(single, repeat, text).lower()


@oracle(24)
def split_fields(text: str, *, mark: str, quote: str) -> list[str]:
    q, m = re.escape(quote), re.escape(mark)
    fields = re.findall(rf"((?:{q}(?:[^{q}]|{q}{q})*(?:{q}|$)|[^{q}{m}])*)(?:{m}|$)", text)
    stretch = re.compile(rf"{q}((?:[^{q}]|{q}{q})*)(?:{q}|$)")
    plain = [stretch.sub(lambda s: s[1].replace(quote * 2, quote), field) for field in fields]
    return [field for field in plain if field]


@oracle(24)
def add_numerals(text: str, *, group: int, mark: str) -> int:
    number = re.compile(rf"-?[0-9]{{1,{group}}}({re.escape(mark)}[0-9]{{{group}}})*")
    return sum(int(word.replace(mark, "")) for word in text.split() if number.fullmatch(word))


@oracle(24)
def add_durations(text: str, *, week: int, day: int) -> int:
    total = 0
    for word in text.split():
        match = re.fullmatch(r"(?=.)(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?", word)
        weeks, days, hours = (int(n or 0) for n in match.groups()) if match else (0, 0, 0)
        total += (weeks * week + days) * day + hours
    return total


@oracle(24)
def match_words(pattern: str, words: list[str], *, least: int, most: int) -> list[int]:
    expression = pattern.replace("?", ".").replace("*", f".{{{least},{most}}}")
    return [i for i, word in enumerate(words) if re.fullmatch(expression, word)]


@oracle(24)
def evaluate_expression(text: str, *, tight: str, side: str) -> int:
    """Splits at the operator that is applied last."""
    depths = [text[:i].count("(") - text[:i].count(")") for i in range(len(text))]
    places = [i for i, c in enumerate(text) if c in "+-*" and depths[i] == 0]
    if not places:
        inner = text[1:-1] if text.startswith("(") else ""
        return evaluate_expression(inner, tight=tight, side=side) if inner else int(text)
    places = [i for i in places if text[i] not in tight] or places
    i = places[0] if side.startswith("right") else places[-1]
    a, b = (evaluate_expression(t, tight=tight, side=side) for t in (text[:i], text[i + 1 :]))
    return {"+": a + b, "-": a - b, "*": a * b}[text[i]]


@oracle(24)
def evaluate_prefix(text: str, *, plus: int, few: int) -> list[int]:
    words, values = iter(text.split()), list[int]()

    def value(word: str) -> int:
        if word == "+":
            return sum(value(next(words)) for _ in range(plus))
        if word == "<":
            return min([value(next(words)) for _ in range(few)])
        return value(next(words)) - value(next(words)) if word == "-" else int(word)

    try:
        while True:
            values.append(value(next(words)))
    except (StopIteration, RuntimeError):  # the words are used up
        return values


@oracle(24)
def run_assignments(text: str, *, modulus: int, start: int) -> list[int]:
    values = dict.fromkeys("abc", start)
    for name, formula in (statement.split("=") for statement in text.split(";") if statement):
        first, *others = re.findall(r"[+*-]?\w+", formula)
        nested = "(" * len(others) + first + "".join(f"{other})" for other in others)
        values[name] = eval(nested, {}, values) % modulus
    return [values[name] for name in "abc"]


@cases("name", ORACLES)
def test_reference_agrees_with_a_slow_solution(name: str) -> None:
    family, rng = FAMILIES[name], random.Random(name)
    solve, largest = ORACLES[name]
    for parameters in 12 * list(family.variants()):
        args = family.inputs(Draw(rng, rng.randint(0, largest), parameters))
        expected = solve(*copy.deepcopy(args), **parameters)
        assert family.answer(args, parameters) == expected, (args, parameters)


@cases("name", ORACLES)
def test_reference_agrees_on_the_edges(name: str) -> None:
    family, rng = FAMILIES[name], random.Random(name)
    for parameters in family.variants():
        for args in family.edges(Draw(rng, family.largest, parameters)):
            expected = ORACLES[name][0](*copy.deepcopy(args), **parameters)
            assert family.answer(args, parameters) == expected, (args, parameters)
