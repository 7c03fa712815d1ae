"""Rows in verl's form (Eurus-2-RL-Data, and others): `prompt`, a conversation, and `reward_model`.

`reward_model.ground_truth` has inputs, outputs and perhaps fn_name, or a list of cases. Only the
user's messages become the prompt: a system prompt of the row may require another form of reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, json_field, parse_json, shorten, text_field

from .apps import object_tests
from .draft import Draft
from .listed import entry_of, listed_tests

_ABILITIES = ("code", "coding", "programming")


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row; one of another `ability` is no program.
    """
    ability = row.get("ability")
    if not (ability is None or (isinstance(ability, str) and ability.lower() in _ABILITIES)):
        raise RowRefused(f"ability: {shorten(ability)} is no programming problem")
    model = json_field(row, "reward_model")
    tests = model.get("ground_truth") if isinstance(model, Mapping) else None
    if isinstance(tests, str):
        tests = parse_json(tests, "ground_truth")
    statement = _asked(json_field(row, "prompt"))
    if isinstance(tests, list) and tests:
        entry = entry_of(tests, None)
        return Draft(statement, listed_tests(tests, entry, starter=""), entry)
    if not isinstance(tests, Mapping):
        raise RowRefused(f"reward_model.ground_truth: got {shorten(tests)}, expected tests")
    entry, cases = object_tests(tests, starter="")
    return Draft(statement, cases, entry)


def _asked(messages: Any) -> str:
    if not isinstance(messages, list):
        raise RowRefused(f"prompt: got {shorten(messages)}, expected a list of messages")
    texts = [
        text_field(message, "content")
        for message in messages
        if isinstance(message, Mapping) and message.get("role") == "user"
    ]
    if not texts:
        raise RowRefused("prompt: no text of a user in it")
    return "\n\n".join(texts)
