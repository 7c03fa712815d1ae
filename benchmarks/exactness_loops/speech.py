"""The texts of the conversations: random ones of clients, and replies that the model learns."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]

TOOLS = ("calculator", "search")
_WORDS = ["the", "sum", "is", "12", "so", "we", "add", "it", "then", "look", "again", "ok"]
_ODD = ("é", "✓", "漢字", "\U0001f600", "\u200d", "ﬁ", "<", '"', "\\", "}", "a\tb", "—")
_LITERAL = ("<|im_end|>", "<tool_call>", "</think>", "<|im_start|>user\n", "\ufffd")
_KINDS = {"text": 3, "call": 4, "malformed": 2, "two calls": 1, "text and call": 2}


def tool(name: str) -> Message:
    """Return a tool as clients offer it."""
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
    function = {"name": name, "description": f"A {name} ✓.", "parameters": parameters}
    return {"type": "function", "function": function}


def words(chance: random.Random, most: int, *, literal: bool = False) -> str:
    """Return a few words, some of them odd; `literal`: also texts that have a meaning in
    templates."""
    pools = [_WORDS] * 4 + [_ODD] + [_LITERAL] * literal
    return " ".join(chance.choice(chance.choice(pools)) for _ in range(chance.randrange(1, most)))


def reply(chance: random.Random, *, opened: bool = False) -> str:
    """Return a reply for the model to learn, as text; `opened`: the prompt ended inside a
    thought."""
    kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
    said = words(chance, 6) if "text" in kind else ""
    calls = {"call": 1, "text and call": 1, "malformed": 1, "two calls": 2}.get(kind, 0)
    written = [_call(chance, malformed=kind == "malformed") for _ in range(calls)]
    thought = f"{words(chance, 5)}\n</think>\n\n"
    if not opened:
        thought = f"<think>\n{thought}" if chance.random() < 0.4 else ""
    return thought + "\n".join(filter(None, [said, *written]))


def _call(chance: random.Random, *, malformed: bool) -> str:
    arguments = {"expression": words(chance, 4)}
    separators = chance.choice([(", ", ": "), (",", ":"), (" ,  ", " : ")])
    call = {"name": chance.choice(TOOLS), "arguments": arguments}
    text = json.dumps(call, ensure_ascii=False, separators=separators)
    if malformed:
        text = chance.choice([text[:-1], text[:-2], text.replace('"', "'"), text[1:], "{}"])
    return f"<tool_call>\n{text}\n</tool_call>"


def conversation(chance: random.Random, *, with_tools: bool) -> list[Message]:
    """Return a short history for the template, which ends with a message that needs a reply."""
    messages: list[Message] = [{"role": "system", "content": "Solve."}]
    messages.append({"role": "user", "content": words(chance, 6, literal=True)})
    for number in range(chance.randrange(3)):
        messages.append({"role": "assistant", "content": words(chance, 6)})
        if with_tools and chance.random() < 0.6:
            id = f"call_{number}_0"
            function = {"name": "search", "arguments": '{"expression": "3*4"}'}
            messages[-1]["tool_calls"] = [{"id": id, "type": "function", "function": function}]
            answer = {"role": "tool", "tool_call_id": id}
        else:
            answer = {"role": "user"}
        messages.append({**answer, "content": words(chance, 6, literal=True)})
    return messages


def observed(said: Mapping[str, Any], chance: random.Random) -> list[Message]:
    """Return the messages after a reply: a result of each of its calls, or a user's message."""
    calls = said.get("tool_calls") or []
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": words(chance, 6, literal=True)}
        for call in calls
    ]
    if not answers or chance.random() < 0.1:
        answers.append({"role": "user", "content": words(chance, 6, literal=True)})
    return answers
