"""The texts of an episode for the table and for the search: the question, the last answer, the
expected answer, and everything that was said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core import parse_json
from agentgym_rl.storage.episode_reader import Glance

MOST_CHARS = 300
"""The most characters of a text in a cell of the table."""
_EXPECTED = (
    *("answer", "expected", "expected_answer", "expected_output", "target", "solution"),
    *("final_answer", "ground_truth", "reference", "reference_answer", "gold", "label", "output"),
)
"""The names under which tasks have their expected answer, the most usual ones first."""
_NESTED = ("row", "reward_model", "data", "extra_info")
"""The names under which a task's data has another object that may hold the expected answer."""
_QUESTION = ("question", "request", "prompt", "instruction", "problem", "task", "query")
SEAT = "seat"
"""The role of the lines between the conversations of a game's seats."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one episode, the first three short."""

    question: str
    answer: str
    expected: str
    everything: str
    """All texts of the conversations, the verdict, the error and the task, with case folded."""


def texts_of(glance: Glance, task: Mapping[str, Any]) -> Texts:
    """Return the texts of an episode with its task's data, {} if that is unknown."""
    talks = [seat.messages for seat in glance.seats] or [glance.messages]
    said = [text for talk in talks for message in talk for text in _texts(message)]
    said += [glance.verdict, glance.error, *_strings(task)]
    return Texts(
        question=short(_question(talks[0], task)),
        answer=short(" | ".join(filter(None, map(answer_of, talks)))),
        expected=short(expected_of(task)),
        everything="\n".join(filter(None, said)).casefold(),
    )


def expected_of(task: Mapping[str, Any]) -> str:
    """Return the expected answer in a task's data; empty if no field is known to have it."""
    inner = (task[name] for name in _NESTED if isinstance(task.get(name), Mapping))
    for data in (task, *inner):
        for name in _EXPECTED:
            if data.get(name) not in (None, "", [], {}):
                return _text(data[name])
    return ""


def words_of(query: str) -> list[str]:
    """Return the texts that an episode must contain: the words of `query`, and its parts in double
    quotation marks as they are. Case is folded."""
    found: list[str] = []
    for k, part in enumerate(query.casefold().split('"')):
        found += [part] if k % 2 else part.split()
    return [word for word in found if word]


def short(text: str) -> str:
    """Return a text in one line of at most MOST_CHARS characters."""
    line = " ".join(text[: 4 * MOST_CHARS].split())
    return line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…"


def _question(talk: Sequence[Message], task: Mapping[str, Any]) -> str:
    for message in talk:
        if message.get("role") == "user":
            return "\n".join(_parts(message.get("content")))
    return next((_text(task[name]) for name in _QUESTION if task.get(name)), "")


def answer_of(talk: Sequence[Message]) -> str:
    """Return the last reply: its text, or else its calls."""
    for message in reversed(talk):
        if message.get("role") == "assistant":
            text = "\n".join(_parts(message.get("content")))
            return text or " ".join(f"{name}({given})" for name, given in _calls(message))
    return ""


def _texts(message: Message) -> Iterator[str]:
    yield from _parts(message.get("content"))
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str):
            yield text
    for name, given in _calls(message):
        yield f"{name} {given}"


def _calls(message: Message) -> Iterator[tuple[str, str]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield _text(function.get("name")), _text(function.get("arguments"))


def _parts(content: Any) -> Iterator[str]:
    """Return the texts of a message's content, without pictures and the like."""
    if not isinstance(content, list):
        yield _text(content)
        return
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if text is not None:
            yield _text(text)


def _strings(value: Any) -> Iterator[str]:
    """Return the texts anywhere in JSON, but for pictures in it."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif not isinstance(value, str) or not value.startswith("data:"):
        yield "" if value is None else str(value)


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def task_data(text: str | None) -> Mapping[str, Any]:
    """Return the task's data from its JSON; {} if the task is not logged yet, or is damaged."""
    try:
        found = parse_json(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
