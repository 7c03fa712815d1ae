"""Problems made from a family: its statement in one of two forms, examples, and hidden tests; the
endless tasks, each a variant of a family, held-out variants kept apart; and the perfect agent."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentgym_rl import ConfigError, EnvError, Task, TaskSource
from agentgym_rl.core import Split
from arl_envs.splits import split_of

from . import text_form
from .families import FAMILIES, Args, Draw, Family, Parameters
from .problem import CallTest, Problem, Test, TextTest

Form = Literal["call", "text"]
"""The form of a task: a function to write, or a program from standard input to output."""

NUM_SHOWN = 2
SHOWN_SIZES = (3, 4, 5, 6)
TRIES = 60
"""The number of attempts to draw a new input; the second half accepts repeated answers."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The complete description of a generated problem: the same recipe gives the same problem."""

    family: Family
    parameters: Parameters
    form: Form
    seed: int
    """The seed of examples and hidden tests."""

    def problem(self, *, num_hidden: int) -> Problem:
        """Return the problem; no hidden test has the input of an example."""
        rng = random.Random(f"arl-code/{self.family.name}/{self.seed}")
        shown = list(self._shown(rng))
        hidden = list(self._hidden(rng, num_hidden, {repr(args) for args, _ in shown}))
        tests = [self._test(args, answer) for args, answer in hidden]
        entry = self.family.name if self.form == "call" else ""
        return Problem(self._statement(shown), entry, tests)

    def solution(self) -> str:
        """Return the reference solution as a submission."""
        function = self.family.source(self.parameters)
        if self.form == "call":
            return function
        types = self.family.argument_types
        return text_form.program(function, self.family.name, types, self.family.return_type)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as JSON for `Task.data`."""
        family, parameters = self.family.name, dict(self.parameters)
        return {"kind": "generated", "family": family, "parameters": parameters, "form": self.form}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, seed: int) -> Recipe:
        """Return the recipe that `to_json` wrote, with this `seed`.

        Raises:
            KeyError, ValueError: `data` is no output of `to_json`.
        """
        family = FAMILIES[data["family"]]
        known = data["parameters"] in list(family.variants())
        if not known or data["form"] not in get_args(Form):
            raise ValueError(f"{family.name} has no such variant: {dict(data)}")
        return cls(family, data["parameters"], data["form"], seed)

    # ------------------------------------------------------------------ tests
    def _shown(self, rng: random.Random) -> Iterator[tuple[Args, Any]]:
        """Yield small examples, with different answers if there are any."""
        seen: dict[str, str] = {}
        for attempt in range(TRIES):
            args, answer = self._drawn(rng, rng.choice(SHOWN_SIZES))
            new = repr(args) not in seen and (
                attempt > TRIES // 2 or repr(answer) not in seen.values()
            )
            if new:
                seen[repr(args)] = repr(answer)
                yield args, answer
            if len(seen) == NUM_SHOWN:
                return

    def _hidden(
        self, rng: random.Random, count: int, shown: set[str]
    ) -> Iterator[tuple[Args, Any]]:
        """Yield the edge cases, then growing random inputs. If possible, at most half of all tests
        share an answer."""
        seen = set(shown)
        answers: Counter[str] = Counter()
        draw = Draw(rng, self.family.largest, self.parameters)
        for args in self.family.edges(draw):
            if repr(args) not in seen and len(seen) - len(shown) < count:
                seen.add(repr(args))
                answer = self.family.answer(args, self.parameters)
                answers[repr(answer)] += 1
                yield args, answer
        left = count - (len(seen) - len(shown))
        for i in range(left):
            size = round(self.family.largest * ((i + 1) / left) ** 1.5)
            for attempt in range(TRIES):
                args, answer = self._drawn(rng, max(size, attempt // 8))
                if repr(args) in seen:
                    continue
                if answers[repr(answer)] >= count // 2 and attempt < TRIES // 2:
                    continue
                seen.add(repr(args))
                answers[repr(answer)] += 1
                yield args, answer
                break

    def _drawn(self, rng: random.Random, size: int) -> tuple[Args, Any]:
        args = self.family.inputs(Draw(rng, size, self.parameters))
        return args, self.family.answer(args, self.parameters)

    def _test(self, args: Args, answer: Any) -> Test:
        if self.form == "call":
            return CallTest(list(args), answer)
        stdin = text_form.input_text(args, self.family.argument_types)
        return TextTest(stdin, text_form.text_of(answer, self.family.return_type))

    def _statement(self, shown: Sequence[tuple[Args, Any]]) -> str:
        statement = self.family.statement(self.parameters)
        types = self.family.argument_types
        if self.form == "call":
            given = ", ".join(f"{name}: {_type_name(type_)}" for name, type_ in types.items())
            head = f"Write `{self.family.name}({given}) -> {_type_name(self.family.return_type)}`."
            calls = [f"{self.family.name}{_tuple(args)} == {answer!r}" for args, answer in shown]
            return "\n".join([head, statement, "Examples:", *calls])
        head = "Write a program that reads standard input and prints the answer."
        form = text_form.describe(types, self.family.return_type)
        examples = [
            f"Example input:\n{text_form.input_text(args, types)}"
            f"Example output:\n{text_form.text_of(answer, self.family.return_type)}"
            for args, answer in shown
        ]
        return "\n".join([head, statement, form, *examples]).rstrip("\n")


def _type_name(type_: Any) -> str:
    return (
        type_.__name__ if isinstance(type_, type) and not hasattr(type_, "__args__") else str(type_)
    )


def _tuple(args: Args) -> str:
    return f"({', '.join(map(repr, args))})"


class GeneratedTasks(TaskSource):
    """The tasks of one split; a pure function of (families, forms, split, seed, index).

    No statement is in both splits, for any seed: a variant belongs to one of them.
    """

    def __init__(
        self, split: Split, *, families: Sequence[Family], forms: Sequence[Form], seed: int = 0
    ) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._split: Split = split
        self._seed = seed
        self._forms = forms
        self._families = [family for family in families if _by_split(family.name)[split]]
        if not self._families:
            names = ", ".join(family.name for family in families)
            raise ConfigError(f"no variant of {names} belongs to the {split} tasks; name more")

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        rng = random.Random(f"arl-code/{self._split}/{self._seed}/{index}")
        family = rng.choice(self._families)
        parameters = rng.choice(_by_split(family.name)[self._split])
        recipe = Recipe(family, parameters, rng.choice(self._forms), rng.getrandbits(53))
        task_id = f"code-{self._split}-{self._seed}-{index}"
        return Task(id=task_id, seed=recipe.seed, data=recipe.to_json(), split=self._split)


@functools.cache
def _by_split(name: str) -> dict[Split, list[Parameters]]:
    """Return the variants of a family, by split."""
    found: dict[Split, list[Parameters]] = {"train": [], "eval": []}
    family = FAMILIES[name]
    for parameters in family.variants():
        found[split_of(f"{name}: {family.statement(parameters)}")].append(parameters)
    return found


def solution_of(task: Task) -> str:
    """Return the reference solution of a generated task.

    Raises:
        EnvError: the task was not generated by this package.
    """
    if task.data.get("kind") != "generated":
        raise EnvError(f"task {task.id}: no solution is known for a task that was not generated")
    return Recipe.from_json(task.data, seed=task.seed).solution()


def submission(source: str) -> dict[str, Any]:
    """Return an assistant message that submits a program."""
    return {"role": "assistant", "content": f"```python\n{source}```"}


def solve(task: Task) -> list[dict[str, Any]]:
    """Return the assistant messages of a perfect episode."""
    return [submission(solution_of(task))]
