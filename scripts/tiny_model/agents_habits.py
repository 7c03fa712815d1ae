"""The agents family: the problems of the math family, in the forms of agent frameworks.

Habits are those of the math family, and one more: some demonstrators forget the required form.
Under a grammar that is impossible; without one, the model learns the form.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from agents_forms import FORMS, Form, phrases
from arl_envs.math.generated import Problem
from arl_envs.math.options import LEVELS
from arl_envs.math.oracle import answer_message
from arl_envs.splits import split_of
from family import TAGS, Conversation, Family, Size, Stage, Vocabulary, WarmUp
from math_habits import CLEAN, EVEN, chosen_habit, guessed, usual_habits, worked

FORGETS = 0.08
"""The share of the answers that forget the form."""


def demonstrate(rng: random.Random, stage: Stage) -> Conversation:
    """Return a conversation about a problem of level 1, in the form of a framework."""
    form = rng.choice(FORMS)
    while True:
        problem = LEVELS[1].generate(rng)
        if stage is Stage.EVEN:
            return demonstration(rng, form, problem, EVEN)
        if split_of(problem.question) == "train":
            habits = CLEAN if stage is Stage.CLEAN else usual_habits(problem)
            forgets = stage is Stage.MIXED and rng.random() < FORGETS
            return demonstration(rng, form, problem, habits, forgets=forgets)


def demonstration(
    rng: random.Random,
    form: Form,
    problem: Problem,
    habits: Mapping[str, float],
    *,
    forgets: bool = False,
) -> Conversation:
    """Return an episode; of a form that rewrites its history, the part up to any of its turns."""
    habit = chosen_habit(rng, problem, habits)
    steps = [] if habit == "guess" else worked(rng, problem.plan, habit)
    answer = steps[-1][1] if steps else guessed(rng, problem)
    turns = [form.work(expression, number=i) for i, (expression, _) in enumerate(steps)]
    last = answer_message(answer) if forgets else form.answer(answer, turn=len(steps))
    messages = form.begin(problem.question)
    end = rng.randrange(len(turns) + 1) if form.rewrites else len(turns)
    for turn, (_, result) in zip(turns[:end], steps, strict=False):
        messages += form.in_history(turn, result)
    given = len(messages) if form.rewrites else 0
    return Conversation([*messages, [*turns, last][end]], form.tools, num_given=given)


AGENTS = Family(
    "agents",
    "agents_env:Framed",
    tools=(),
    demonstrate=demonstrate,
    plan=WarmUp(clean_steps=500, mixed_steps=400),
    size=Size(context=8192),
    vocabulary=Vocabulary(tags=(*TAGS, *phrases()), max_size=736),
)
