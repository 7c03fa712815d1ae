"""What every family of generated tasks promises."""

from __future__ import annotations

import copy
import itertools
import operator
import random
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from arl_envs.code.families import FAMILIES, Draw, Family

from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases

from .inputs import inputs_of
from .mutants import load

PLAIN = (int, bool, str, list[int], list[str], list[list[int]])
each_family = cases("family", FAMILIES.values(), ids=FAMILIES)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is exactly of a type such as `list[list[int]]`."""
    if typing.get_origin(hint) is list:
        return type(value) is list and all(fits(item, typing.get_args(hint)[0]) for item in value)
    return type(value) is hint


def lines(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from lines(item)
    elif isinstance(value, str):
        yield value


@each_family
def test_answers_repeat_and_leave_the_arguments_alone(family: Family):
    for args, parameters in inputs_of(family):
        given = copy.deepcopy(args)
        assert family.answer(args, parameters) == family.answer(given, parameters)
        assert args == given


@each_family
def test_the_source_alone_gives_the_same_answers(family: Family):
    each = itertools.groupby(inputs_of(family, variants=3), key=operator.itemgetter(1))
    for parameters, inputs in each:
        call = load(family.source(parameters), family.name)
        for args, _ in inputs:
            assert call(*args) == family.answer(args, parameters)


@each_family
def test_inputs_and_answers_are_of_the_types_declared(family: Family):
    assert {family.return_type, *family.argument_types.values()} <= {*PLAIN}
    for args, parameters in inputs_of(family):
        assert len(args) == len(family.argument_types)
        assert all(map(fits, args, family.argument_types.values()))
        assert fits(family.answer(args, parameters), family.return_type)


@each_family
def test_texts_are_single_printable_lines(family: Family):
    for args, parameters in inputs_of(family):
        for line in lines([*args, family.answer(args, parameters)]):
            assert line.isascii()
            assert line.isprintable()
            assert line == line.strip()


@each_family
def test_statements_are_short_and_whole(family: Family):
    statements = [family.statement(parameters) for parameters in family.variants()]
    assert len(set(statements)) == family.num_variants >= 8
    for statement in statements:
        assert not {*statement} & {*"{}"}
        assert statement.endswith(".")
        assert len(statement) <= 380


@each_family
def test_statements_name_every_argument(family: Family):
    statement = family.statement(next(family.variants()))
    for name in family.argument_types:
        assert f"`{name}`" in statement or f"{name}[i]" in statement


@each_family
def test_there_are_some_edges_but_not_too_many(family: Family):
    for parameters in family.variants():
        assert 3 <= len(family.edges(Draw(random.Random(0), family.largest, parameters))) <= 6


@pytest.mark.slow
@each_family
def test_no_answer_is_a_good_guess(family: Family):
    """Of four variants of each family; of all with ARL_EXHAUSTIVE=1."""
    rng = random.Random(family.name)
    variants = list(family.variants())
    for parameters in variants if EXHAUSTIVE else rng.sample(variants, 4):
        sizes = itertools.islice(itertools.cycle(range(4, family.largest + 1)), 200)
        inputs = [family.inputs(Draw(rng, size, parameters)) for size in sizes]
        answers = Counter(repr(family.answer(args, parameters)) for args in inputs)
        assert answers.most_common(1)[0][1] <= (140 if family.return_type is bool else 90)


@each_family
def test_no_two_variants_are_the_same_task(family: Family):
    rng = random.Random(family.name)
    sizes = [*range(4, family.largest + 1)] * 4
    for one, other in itertools.combinations(family.variants(), 2):
        draws = [Draw(rng, size, each) for size in sizes for each in (one, other)]
        edges = itertools.chain(*(family.edges(draw) for draw in draws[-2:]))
        inputs = itertools.chain(edges, map(family.inputs, draws))
        assert any(family.answer(args, one) != family.answer(args, other) for args in inputs)
