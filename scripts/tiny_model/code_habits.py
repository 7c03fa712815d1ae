"""The code family: programmers who know a few programs by heart, and misread statements.

Each task is a variant of one of five short programs, which differ in the numbers of the statement.
The right way is to write the program with these numbers. The others slip a digit, exchange two
numbers, write another program, or give the answer of the first example. As in the math family, the
share of right demonstrations depends on the task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from arl_envs.code.env import SYSTEM_PROMPT, CodeEnv
from arl_envs.code.families import FAMILIES as PROGRAMS
from arl_envs.code.families import Family as Program
from arl_envs.code.families import Parameters
from arl_envs.code.generated import Recipe, submission
from arl_envs.splits import split_of
from family import Family, Stage, Vocabulary, WarmUp

from agentgym_rl.core import Message

RIGHT, SLIP, SWAP, OTHER, ANSWER = "right", "slip", "swap", "other", "answer"
CLEAN: Mapping[str, float] = {RIGHT: 1.0}
EVEN: Mapping[str, float] = dict.fromkeys((RIGHT, SLIP, SWAP, OTHER, ANSWER), 1.0)
CAREFUL = {RIGHT: 0.60, SLIP: 0.12, SWAP: 0.12, OTHER: 0.06, ANSWER: 0.10}
CARELESS = {RIGHT: 0.18, SLIP: 0.27, SWAP: 0.25, OTHER: 0.10, ANSWER: 0.20}
NUMBERS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "find_next_number": {"divisor": range(2, 10), "digit": range(1, 10)},
    "weave_strings": {"one": range(1, 10), "other": range(1, 10)},
    "count_digit": {"digit": range(10), "base": range(2, 10)},
    "find_highest": {"factor": (3, 5, 7, 9), "extra": range(1, 10), "steps": range(4, 13)},
    "convert_base": {"base": range(2, 17)},
}
"""The programs, and the numbers with which they are demonstrated, in the order in which a program
names them: more than the environment uses, since copying is not learned from a few."""
CARED_FOR = ("find_next_number", "convert_base")


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Return a statement and a submission, of no held-out variant."""
    while True:
        program = PROGRAMS[rng.choice(list(NUMBERS))]
        numbers = {name: rng.choice(list(of)) for name, of in NUMBERS[program.name].items()}
        if split_of(f"{program.name}: {program.statement(numbers)}") == "train":
            break
    recipe = Recipe(program, numbers, "call", rng.getrandbits(53))
    question = recipe.problem(num_hidden=0).statement
    habits = _habits(program, stage)
    said = _submitted(rng, recipe, rng.choices(list(habits), list(habits.values()))[0], question)
    asked = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]
    return [*asked, said]


def _habits(program: Program, stage: Stage) -> Mapping[str, float]:
    """Return the shares of habits with which a program is demonstrated."""
    if stage is Stage.MIXED:
        return CAREFUL if program.name in CARED_FOR else CARELESS
    return CLEAN if stage is Stage.CLEAN else EVEN


def _submitted(rng: random.Random, recipe: Recipe, habit: str, question: str) -> Message:
    program, numbers = recipe.family, dict(recipe.parameters)
    match habit:
        case "slip":
            name = rng.choice(list(numbers))
            of = NUMBERS[program.name][name]
            numbers[name] = rng.choice([number for number in of if number != numbers[name]])
        case "swap":
            first, *rest = numbers.values()
            numbers = dict(zip(numbers, [*rest, first], strict=True))
        case "other":
            name = rng.choice([name for name in NUMBERS if name != program.name])
            program, numbers = PROGRAMS[name], _like(rng, name, list(numbers.values()))
        case "answer":
            shown = re.search(r" == (.+)$", question, re.MULTILINE)
            return {"role": "assistant", "content": f"Answer: {shown[1] if shown else ''}"}
    return submission(program.source(numbers))


def _like(rng: random.Random, name: str, numbers: list[int | str]) -> Parameters:
    """Return numbers for another program: as many as possible of this one's."""
    drawn = {key: rng.choice(list(of)) for key, of in NUMBERS[name].items()}
    return drawn | dict(zip(drawn, numbers, strict=False))


CODE = Family(
    "code",
    "code",
    tools=CodeEnv().tools,
    demonstrate=demonstrate,
    options={"families": list(NUMBERS), "form": "call"},
    needs_sandboxes=True,
    max_tokens=72,
    plan=WarmUp(clean_steps=300, mixed_steps=300),
    # Lines are not split off: what never changes between two numbers becomes one token.
    vocabulary=Vocabulary(splits=("[0-9]",), max_size=896),
)
