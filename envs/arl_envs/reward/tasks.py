"""The conversion of rows to tasks: a prompt each, and the row that the function receives."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agentgym_rl import ConfigError
from agentgym_rl import data as gym_data
from agentgym_rl.core import Split, is_rendered, text_message
from agentgym_rl.core.chat import RENDERED
from agentgym_rl.gym.data import Row, RowRefused, RowTask, RowTasks, row_tasks, shorten, weight_of
from agentgym_rl.runtime import import_object

from .options import Options, Parameters, parameters

_log = logging.getLogger(__name__)

_PROMPTS = ("system", "system_prompt", "messages", "tools")
"""The fields that other programs read as parts of a prompt."""
_ROLES = ("system", "user", "assistant", "tool", "developer")
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class MakeTasks:
    """A maker of tasks from a row: `{"messages": [...], "row": {...}}`."""

    prompt_field: str
    system_prompt: str
    processor: str | None
    weight_field: str
    function: str = ""
    parameters: Parameters = Parameters()  # noqa: RUF009 (frozen)
    form: gym_data.RowForm | None = None
    """The form of the rows, which finds the prompt in place of `prompt_field`."""
    answered: gym_data.RowForm | None = None
    """The form whose reference answer must not be blank; None: no answer is known."""

    def __str__(self) -> str:
        return self.processor or type(self).__name__

    def __call__(self, row: Row) -> list[RowTask]:
        return [self._task(item) for item in self._processed(row)]

    def _processed(self, row: Row) -> list[dict[str, Any]]:
        if self.processor is None:
            return [dict(row)]
        found = import_object(self.processor)(dict(row))
        items = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(item, dict) for item in items):
            raise ConfigError(
                f"{self.processor} returned {found!r:.200}, expected a row (a dictionary), a list "
                "of them, or None to leave it out"
            )
        return items

    def _task(self, row: dict[str, Any]) -> RowTask:
        try:
            text = json.dumps(row, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RowRefused(
                f"the row is no JSON ({error}); a `processor` can make it so"
            ) from error
        self.parameters.check_columns(row, self.function)
        messages = self._messages(row)
        if self.answered and not _has_answer(self.answered, row):
            raise RowRefused(_no_answer(self.answered, row))
        question = json.dumps(messages, ensure_ascii=False)
        weight = weight_of(row, self.weight_field)
        said = " ".join(message["content"] or "" for message in messages)
        data = {"messages": messages, "row": row}
        return RowTask(question, data, key=text, weight=weight, said=said)

    def _messages(self, row: Row) -> list[dict[str, Any]]:
        prompt = self.form.prompt_of(row) if self.form else row.get(self.prompt_field)
        if isinstance(prompt, str) and prompt.strip():
            messages = [{"role": "user", "content": prompt}]
        elif isinstance(prompt, list) and prompt:
            messages = _messages(prompt)
        else:
            raise RowRefused(
                f"{self.prompt_field}: got {shorten(prompt)}, expected text or a list of messages "
                f"(prompt_field); the row has {', '.join(map(str, row))}"
            )
        if not any((message["content"] or "").strip() for message in messages):
            raise RowRefused(f"{self.prompt_field}: nothing is said in it")
        if any(is_rendered(message["content"] or "") for message in messages):
            raise RowRefused(f"{self.prompt_field}: {RENDERED}")
        if messages[-1]["role"] == "assistant":
            raise RowRefused(f"{self.prompt_field}: its last message is the assistant's")
        if not self.system_prompt:
            return messages
        if messages[0]["role"] in _SYSTEM:
            raise RowRefused("a system message of its own, where system_prompt is set")
        return [{"role": "system", "content": self.system_prompt}, *messages]


def _has_answer(form: gym_data.RowForm, row: Row) -> bool:
    """Return whether a row has a reference answer that is not blank."""
    found = form.find_answer(row) if form.find_answer else row.get(form.answer)
    return bool(found.strip()) if isinstance(found, str) else found not in (None, [])


def _no_answer(form: gym_data.RowForm, row: Row) -> str:
    """Return why a row without a reference answer is refused."""
    got = f"got {shorten(row[form.answer])}" if form.answer in row else "there is none"
    return f"{form.answer}: {got}, expected the answer (blank_answers=true keeps such rows)"


def _messages(prompt: list[Any]) -> list[dict[str, Any]]:
    """Return the messages of a prompt: a list of messages, or of the parts of one user message."""
    parts = all(isinstance(item, dict) and "type" in item and "role" not in item for item in prompt)
    return [_message(item) for item in ([{"role": "user", "content": prompt}] if parts else prompt)]


def _message(value: Any) -> dict[str, Any]:
    match value:
        case {"role": role, "content": str() | list()} if role in _ROLES:
            try:
                return dict(text_message(value))
            except ValueError as error:
                raise RowRefused(f"a message of the role {role}: {error}") from error
        case {"role": "assistant", "content": None, "tool_calls": [_, *_]}:
            return dict(value)
    raise RowRefused(f"a message: got {value!r:.80}, expected role and content")


@dataclass(frozen=True, slots=True)
class Choose:
    """A choice of the `MakeTasks` for a file: the same one for all, or one for the form of the
    file's first row, if no field is named."""

    make: MakeTasks
    blank_answers: bool = False

    def __call__(self, row: Row, where: str) -> MakeTasks:
        if self.make.prompt_field:
            return self.make
        found = gym_data.form_of(row, where, flag="--env.options.prompt_field=")
        field, form = found.form.prompt, found.form
        is_known = form.find_answer is not None or form.answer in row
        checks = self.make.function and not self.blank_answers and is_known
        if found.name != "prompt":
            _log_form(where.rpartition(", ")[0] or where, str(found))
        read = None if form.read is None else form
        return replace(self.make, prompt_field=field, form=read, answered=form if checks else None)


@lru_cache(maxsize=64)
def _log_form(name: str, form: str) -> None:
    """Log once how the rows of a file are read."""
    _log.info("%s: rows read as %s", name, form)


def prompt_tasks(split: Split, options: Options, *, seed: int) -> RowTasks:
    """Return the tasks of `split`.

    Raises:
        ConfigError: no such file, processor or prompt; or a processor that fails.
    """
    if options.processor is not None and not callable(import_object(options.processor)):
        raise ConfigError(f"processor {options.processor} is no function")
    rows = options.where()
    function = None if options.judged() else options.reward_function()
    prompt_field = options.prompt_field or ("prompt" if options.processor else "")
    make = MakeTasks(
        prompt_field,
        options.system_prompt,
        options.processor,
        rows.weight_field,
        options.function,
        Parameters() if function is None else parameters(function, options.function),
    )
    tasks = row_tasks(split, rows, Choose(make, options.blank_answers), seed=seed)
    if len(tasks):
        _, row = task_parts(tasks[0].data)
        prompt = prompt_field or "prompt"
        unread = [name for name in _PROMPTS if row.get(name) and name != prompt]
        if unread and options.processor is None and prompt in row:
            _log_unread(prompt, tuple(unread))
    return tasks


@lru_cache(maxsize=64)
def _log_unread(prompt_field: str, names: tuple[str, ...]) -> None:
    """Log once the fields of rows that could be taken for a part of the prompt."""
    _log.warning(
        "rows have %s, and the prompt is the field %s alone, without tools: if it is more, choose "
        "another prompt_field, set system_prompt, or make it of the row by a processor",
        ", ".join(names), prompt_field,
    )  # fmt: skip


def task_parts(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the messages and the row of `Task.data`.

    Raises:
        ValueError: the data is not of this environment.
    """
    match data:
        case {"messages": [_, *_] as messages, "row": dict(row)}:
            return list(messages), row
    raise ValueError(f"got {sorted(map(str, data))}, expected messages and row")
