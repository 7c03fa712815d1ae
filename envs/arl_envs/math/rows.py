"""Problems from the rows of public data sets, by Hugging Face id or local file.

The known row formats, with the question and the answer in each:

    gsm8k        question, answer (a solution, then #### and a number)
    deepmath     question, final_answer
    math         problem, answer        MATH-500, DeepScaleR, Polaris, AIME
    hendrycks    problem, solution (the answer in its last box)
    plain        question, answer
    prompt       prompt, answer
    trl          prompt, ground_truth
    trl_solution prompt, solution (the answer in its last box, or all of it)
    verl         prompt, reward_model (the answer is its ground_truth)
    instruction  instruction, output; and input, if there is one

A prompt is text, or a list of messages of which one is the user's.
Other fields are ignored. A row whose answer the judge cannot read is refused, because no
reply could ever be compared with it; so is a row whose answer means that there is none ("proof").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgym_rl import ConfigError
from agentgym_rl.core import Split, is_list, is_mapping
from agentgym_rl.gym.data import (
    Row,
    RowRefused,
    Rows,
    RowTask,
    RowTasks,
    optional_text,
    shorten,
    text_field,
)
from agentgym_rl.gym.data import row_tasks as tasks_of_rows
from arl_envs.math.symbolic.expression import Unreadable
from arl_envs.math.symbolic.notation import MAX_CHARS

from .answers import last_box
from .judge import check_gold


class Item(NamedTuple):
    """A row's question and its right answer."""

    question: str
    answer: str


class Format(NamedTuple):
    fields: tuple[str, ...]
    """The fields that every row of this format has."""
    item_of: Callable[[Row], Item]


MAX_BITS = 3 * MAX_CHARS
"""The most bits of a whole number as an answer."""
_CALCULATION = re.compile(r"<<[^<>]*>>")
_MARKED = re.compile(r"^[ \t]*####[ \t]*(\S(?:[^\n]*\S)?)[ \t]*$", re.MULTILINE)


def gsm8k(row: Row) -> Item:
    found = _MARKED.findall(text_field(row, "answer"))
    if not found:
        raise RowRefused("answer: no line that begins with ####")
    return _item(row, "question", found[-1])


def deepmath(row: Row) -> Item:
    return _item(row, "question", _answer(row, "final_answer"))


def math(row: Row) -> Item:
    return _item(row, "problem", _answer(row, "answer"))


def hendrycks(row: Row) -> Item:
    solution = text_field(row, "solution")
    _, answer = last_box(solution)
    if answer is None:
        raise RowRefused("solution: no \\boxed{} in it")
    return _item(row, "problem", answer)


def plain(row: Row) -> Item:
    return _item(row, "question", _answer(row, "answer"))


def prompt(row: Row) -> Item:
    return _checked(_prompt_text(row), _answer(row, "answer"))


def trl(row: Row) -> Item:
    return _checked(_prompt_text(row), _answer(row, "ground_truth"))


def trl_solution(row: Row) -> Item:
    solution = text_field(row, "solution")
    _, answer = last_box(solution)
    return _checked(_prompt_text(row), solution if answer is None else answer)


def verl(row: Row) -> Item:
    reward = row.get("reward_model")
    if not is_mapping(reward):
        raise RowRefused(f"reward_model: got {shorten(reward)}, expected an object")
    return _checked(_prompt_text(row), _answer(reward, "ground_truth"))


def instruction(row: Row) -> Item:
    text = "\n\n".join(filter(None, [text_field(row, "instruction"), optional_text(row, "input")]))
    return _checked(text, _answer(row, "output"))


def _prompt_text(row: Row) -> str:
    """Return the text of the user's only message in the field `prompt`."""
    value = row.get("prompt")
    if not is_list(value):
        return text_field(row, "prompt")
    said = [it for it in value if is_mapping(it) and it.get("role") not in ("system", "developer")]
    if len(said) != 1 or said[0].get("role") != "user":
        raise RowRefused("prompt: several messages, expected one of the user's")
    return text_field(said[0], "content")


FORMATS: dict[str, Format] = {
    "gsm8k": Format(("question", "answer"), gsm8k),
    "deepmath": Format(("question", "final_answer"), deepmath),
    "math": Format(("problem", "answer"), math),
    "hendrycks": Format(("problem", "solution"), hendrycks),
    "plain": Format(("question", "answer"), plain),
    "verl": Format(("prompt", "reward_model"), verl),
    "trl": Format(("prompt", "ground_truth"), trl),
    "prompt": Format(("prompt", "answer"), prompt),
    "trl_solution": Format(("prompt", "solution"), trl_solution),
    "instruction": Format(("instruction", "output"), instruction),
}
"""The formats by name, in the order in which they are tried."""


def format_of(row: Row, where: str) -> str:
    """Return the name of the first format whose fields `row` has.

    Raises:
        ConfigError: `row` does not have all fields of any format.
    """
    for name, known in FORMATS.items():
        if all(row.get(field) is not None for field in known.fields):
            if name == "gsm8k" and not _MARKED.search(str(row["answer"])):
                continue  # the format "plain" fits
            return name
    formats = "; ".join(f"{name}: {', '.join(known.fields)}" for name, known in FORMATS.items())
    raise ConfigError(
        f"{where}: fields {sorted(map(str, row))} are those of no known format ({formats})"
    )


def check_format(name: object) -> str:
    """Return `name` if a format has this name.

    Raises:
        ConfigError: no format has it.
    """
    if name not in FORMATS:
        raise ConfigError(f"no row format is called {name!r}; allowed: {', '.join(FORMATS)}")
    return str(name)


def _answer(row: Row, name: str) -> str:
    """Return the answer in field `name`: text, a whole number, or a list of one text."""
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > MAX_BITS:
            raise RowRefused(f"{name}: a whole number of more than {MAX_CHARS} digits")
        return str(value)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    if isinstance(value, str):
        return text_field(row, name)
    raise RowRefused(f"{name}: got {shorten(value)}, expected text or a whole number")


def _item(row: Row, question: str, answer: str) -> Item:
    return _checked(text_field(row, question), answer)


def _checked(text: str, answer: str) -> Item:
    try:
        check_gold(answer, text)
    except Unreadable as error:
        raise RowRefused(f"the answer {shorten(answer)} cannot be read: {error}") from error
    return Item(text, answer)


@dataclass(frozen=True, slots=True)
class MakeQuestion:
    """A maker of tasks from rows of `format`: `{"kind": "symbolic", "question":…, "answer":…}`."""

    format: str
    max_calculations: int | None = None

    def __call__(self, row: Row) -> RowTask | None:
        if self.max_calculations is not None:
            number = len(_CALCULATION.findall(text_field(row, "answer")))
            if number > self.max_calculations:
                return None
        item = FORMATS[self.format].item_of(row)
        data = {"kind": "symbolic", "question": item.question, "answer": item.answer}
        return RowTask(item.question, data)


@dataclass(frozen=True, slots=True)
class ChooseFormat:
    """A choice of the format: the named one, or else that of the first row."""

    format: str | None
    max_calculations: int | None = None

    def __call__(self, row: Row, where: str) -> MakeQuestion:
        name = self.format or format_of(row, where)
        if self.max_calculations is not None and name != "gsm8k":
            raise ConfigError(
                f"max_calculations: only for rows of the format gsm8k, not {name}: its solutions "
                "mark calculations, <<48/2=24>>"
            )
        return MakeQuestion(name, self.max_calculations)


def row_tasks(
    split: Split,
    *,
    seed: int = 0,
    format: str | None = None,
    max_calculations: int | None = None,
    data: str | None = None,
    eval_data: str | None = None,
    **rows: Any,
) -> RowTasks:
    """Return the tasks of `split` from the `rows` of a file or a Hugging Face data set.

    `rows` are the fields of `gym.data.Rows`: `path` or `dataset`, and the fields that go
    with them; `data` and `eval_data` are short forms of two of them. `format` is inferred from the
    fields of the first row, unless it is given. Rows whose answer cannot be read are left out,
    counted and reported, and so are rows with more than `max_calculations` in their solution.

    Raises:
        ConfigError: options do not fit together, data is absent or malformed, or no row makes a
            task.
    """
    most: Any = max_calculations
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise ConfigError(f"max_calculations: got {most!r}, expected a whole number from 0")
    chosen = ChooseFormat(None if format is None else check_format(format), most)
    source = Rows.of_options(rows, data=data, eval_data=eval_data)
    return tasks_of_rows(split, source, chosen, seed=seed)
