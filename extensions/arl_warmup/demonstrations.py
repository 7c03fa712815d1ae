"""The rows of supervised data, read into conversations: messages, tools, and the replies to learn.

Forms that are read, of one conversation a row:

    messages             OpenAI's chat messages (`role`, `content`, `tool_calls`), as `arl export`
                         writes them; also under `conversations` or `conversation`
    from, value          messages of ShareGPT: human, gpt, system, function_call, observation
    prompt, completion   two lists of messages (TRL), of which the completion is learned
    tools                OpenAI's or flat, also as JSON text; `functions` of OpenAI's old form
    system               the system message, for conversations without one

A field that changes the loss of a message or a row (`weight`, `train`, `loss_mask`) is either
applied or refused; any other field that is left out is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.core import Message, is_dict, is_list, text_message

Fields = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bot"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function_response"), "tool"),
    **{"system": "system", "function_call": "assistant"},
}
"""The roles of ShareGPT's `from`."""
_MESSAGE_WEIGHTS = ("weight", "loss_weight", "loss_scale", "loss_mask")
_MESSAGE_SWITCHES = ("train", "training", "trainable", "loss", "learn")
_MESSAGE_SPANS = ("train_detail", "training_detail", "mask", "masks", "loss_masks")
_ROW_WEIGHTS = ("weight", "weights", "loss_weight", "loss_scale", "sample_weight")
_ROW_SWITCHES = ("train", "trainable")
_ROW_MASKS = ("loss_mask", "loss_masks", "completion_mask", "assistant_masks", "train_on_turn")
_LISTS = ("messages", "conversations", "conversation")
_EXPORTED = ("reward", "task_id", "env", "split", "episode_id", "policy_versions")
_READ = frozenset(
    {
        *_EXPORTED,
        *_ROW_WEIGHTS,
        *_ROW_SWITCHES,
        *("tools", "functions", "system", "label", "input_ids", "labels", "attention_mask"),
    }
)
_PREFERENCES = ("chosen", "rejected", "completion", "prompt")


class SkippedRow(Exception):
    """A row that is marked as not to be learned."""


@dataclass(slots=True)
class Notes:
    """The differences between the rows and what is learned, counted, to be logged once."""

    where: int = 0
    """The line that is read now."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    first: dict[str, int] = field(default_factory=dict[str, int])
    """The first line of each kind."""
    examples: dict[str, str] = field(default_factory=dict[str, str])
    """The first text of some kinds, shortened."""
    columns: set[str] = field(default_factory=set[str])
    """The columns that are not read."""
    fields: set[str] = field(default_factory=set[str])
    """The fields of messages that neither are read nor occur in the chat template."""

    def add(self, kind: str, example: str = "") -> None:
        """Count a difference; the first `example` of its kind is shown."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.first.setdefault(kind, self.where)
        if example:
            self.examples.setdefault(kind, f": {example!r:.100}")

    def said(self) -> list[str]:
        """Return a sentence for each kind of difference."""
        said = [
            f"{count:,} × {kind} (first in line {self.first[kind]:,}{self.examples.get(kind, '')})"
            for kind, count in self.counts.items()
        ]
        for what, names in (("columns", self.columns), ("fields of messages", self.fields)):
            if names:
                said.append(f"{what} that are not read: {', '.join(sorted(names))}")
        return said


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation whose replies are learned."""

    messages: Sequence[Message]
    tools: Sequence[Fields] | None
    learns: Sequence[bool]
    """Whether each message is learned, if it is the assistant's."""


def conversation_of(row: Fields, notes: Notes) -> Demonstration:
    """Return the conversation of a row.

    Raises:
        SkippedRow: the row has a weight of 0.
        ValueError: the row is of no known form, or has a field that cannot be applied.
    """
    check_row(row)
    items, start = _items(row)
    read = [_message(item, f"message {n}", notes) for n, item in enumerate(items)]
    messages = [message for message, _ in read]
    learns = [learned and n >= start for n, (_, learned) in enumerate(read)]
    if system := row.get("system"):
        messages, learns = _with_system(system, messages, learns)
    tools = tools_of(row, notes)
    known = _properties(tools)
    messages = [_without_fillers(message, known, notes) for message in messages]
    _note_columns(row, notes)
    return Demonstration(_with_call_ids(messages), tools, learns)


def check_row(row: Fields) -> None:
    """Refuse or skip a row whose own fields exclude or change its learning.

    Raises:
        SkippedRow: the row has a weight of 0.
        ValueError: a weight or a mask that cannot be applied, or a bad example.
    """
    for name in _ROW_WEIGHTS:
        value = row.get(name)
        if value is None or value == 1:
            continue
        if value == 0:
            raise SkippedRow
        raise ValueError(
            f"{name}: got {value!r:.60}; all rows are learned alike, so a row's weight is 0 or 1. "
            "If it is no weight, leave the column out or rename it"
        )
    for name in _ROW_SWITCHES:
        if row.get(name) is not None and not _switch(row[name], name):
            raise SkippedRow
    masks = [name for name in _ROW_MASKS if row.get(name) is not None]
    if masks:
        raise ValueError(
            f"{masks[0]} is not read: give `labels` beside `input_ids` (-100: not learned), or "
            '"weight": 0 in the messages that are not learned'
        )
    label = row.get("label")
    if label is not None and label != 1:
        raise ValueError(
            f"label: got {label!r:.60}; true is a good example (KTO), and any other would be "
            "learned like one: keep the rows with true (arl export --sft --min-reward X), or "
            "rename the column if it is no label of good and bad"
        )
    if row.get("chat_template_kwargs"):
        raise ValueError(
            "chat_template_kwargs is not read: a run renders its prompts by the keys of `gateway` "
            "(gateway.enable_thinking), and so are the rows; leave it out"
        )


def _items(row: Fields) -> tuple[list[Any], int]:
    """Return the messages, and the index of the first one that may be learned."""
    found = [name for name in _LISTS if row.get(name) is not None]
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)}: which of them is the conversation? Keep one")
    if found:
        return _listed(row[found[0]], found[0]), 0
    if is_list(row.get("prompt")) and is_list(row.get("completion")):
        return [*row["prompt"], *row["completion"]], len(row["prompt"])
    hint = ""
    if any(name in row for name in _PREFERENCES):
        hint = (
            "; of pairs and of texts, write the conversation to learn as `messages` (prompt and "
            "chosen), or export it with arl export --sft"
        )
    raise ValueError(f"neither messages nor input_ids, but {sorted(row)}{hint}")


def _listed(value: Any, name: str) -> list[Any]:
    value = _parsed(value, name)
    if not is_list(value):
        raise ValueError(f"{name}: got {value!r:.60}, expected a list of messages")
    return value


def _parsed(value: Any, name: str) -> Any:
    """Return a value, or that of its JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: got the text {value!r:.60}, which is no JSON") from error


def _message(item: Any, where: str, notes: Notes) -> tuple[dict[str, Any], bool]:
    """Return a message in OpenAI's form, and whether it is learned if it is the assistant's."""
    if not is_dict(item):
        raise ValueError(f"{where}: got {item!r:.60}, expected an object with role and content")
    if "role" not in item and "from" in item:
        item = _of_sharegpt(item, where)
    role = item.get("role")
    if role not in _ROLES:
        raise ValueError(f"{where}: role {role!r}, allowed: {', '.join(_ROLES)}")
    learns = _learns(item, where)
    if role != "assistant" and any(item.get(name) is True for name in _MESSAGE_SWITCHES):
        notes.add("message to be trained that is not the assistant's, and is not learned")
    hidden = {*_MESSAGE_WEIGHTS, *_MESSAGE_SWITCHES}
    message = {key: value for key, value in item.items() if key not in hidden}
    message["role"] = {"developer": "system", "function": "tool"}.get(role, role)
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise ValueError(
            f"{where}: content: got {content!r:.60}, expected text (of an object, its JSON text)"
        )
    try:
        message = dict(text_message(message))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if role == "assistant":
        message = _with_calls(message, where)
        if not message.get("content") and isinstance(refusal := message.pop("refusal", None), str):
            message["content"] = refusal
    elif message.get("tool_calls"):
        raise ValueError(f"{where}: tool_calls in a message of the role {role}")
    return message, learns


def _of_sharegpt(item: Fields, where: str) -> dict[str, Any]:
    speaker, value = item["from"], item.get("value")
    if speaker not in _SPEAKERS:
        raise ValueError(f"{where}: from {speaker!r}, allowed: {', '.join(_SPEAKERS)}")
    kept = {key: other for key, other in item.items() if key not in ("from", "value")}
    if speaker == "function_call":
        calls = _parsed(value, f"{where}: value")
        calls = calls if is_list(calls) else [calls]
        return {**kept, "role": "assistant", "content": None, "tool_calls": calls}
    return {**kept, "role": _SPEAKERS[speaker], "content": value}


def _learns(item: Fields, where: str) -> bool:
    """Return whether no field of a message excludes it from learning."""
    for name in _MESSAGE_SPANS:
        if item.get(name) is not None:
            raise ValueError(
                f'{where}: {name} is not read: a reply is learned completely, or not ("weight": 0)'
            )
    learns = not _switch(item.get("masked") or False, f"{where}: masked")
    for name in (*_MESSAGE_WEIGHTS, *_MESSAGE_SWITCHES):
        if item.get(name) is not None:
            learns = _switch(item[name], f"{where}: {name}") and learns
    return learns


def _switch(value: Any, name: str) -> bool:
    if value in (0, 1):
        return bool(value)
    raise ValueError(f"{name}: got {value!r:.60}, allowed: 0 and 1, or false and true")


def _with_calls(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an assistant's message with its calls in OpenAI's form."""
    calls = _parsed(message.pop("tool_calls", None) or [], f"{where}: tool_calls")
    old = message.pop("function_call", None)
    if old:
        calls = [*calls, _parsed(old, f"{where}: function_call")]
    if not is_list(calls):
        raise ValueError(f"{where}: tool_calls: got {calls!r:.60}, expected a list")
    if calls:
        message["tool_calls"] = [_call(_parsed(call, where), where) for call in calls]
    return message


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if is_dict(call) else None
    if not is_dict(function) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(
            f'{where}: got the call {call!r:.80}, expected {{"type": "function", "function": '
            '{"name": ..., "arguments": ...}}'
        )
    arguments = function.get("arguments")
    if "arguments" not in function and set(function) - {"name", "id", "type"}:
        raise ValueError(
            f"{where}: the call of {function['name']!r} has no `arguments`: {call!r:.80}"
        )
    if arguments is not None and not isinstance(arguments, str | dict):
        raise ValueError(
            f"{where}: arguments of {function['name']!r}: got {arguments!r:.60}, expected an object"
        )
    if isinstance(arguments, str) and not arguments.strip():
        arguments = None  # APIs write "" for no arguments
    named = {"name": function["name"], "arguments": {} if arguments is None else arguments}
    kept = {} if function is call else {key: call[key] for key in call if key != "function"}
    return {**({"id": call["id"]} if call.get("id") else {}), "type": "function", **kept,
            "function": named}  # fmt: skip


def _with_call_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with ids where calls and their results have none (old and flat forms)."""
    made, waiting = list[dict[str, Any]](), list[str]()
    for number, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            named = [
                {**call, "id": call.get("id") or f"call_{number}_{n}"}
                for n, call in enumerate(calls)
            ]
            waiting = [call["id"] for call in named]
            message = {**message, "tool_calls": named}
        elif message["role"] == "tool" and not message.get("tool_call_id") and waiting:
            message = {**message, "tool_call_id": waiting.pop(0)}
        made.append(message)
    return made


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the arguments of calls as JSON text."""
    return [
        {**message, "tool_calls": [_spelled(call) for call in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


def _spelled(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    text = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}


def _with_system(
    system: Any, messages: list[dict[str, Any]], learns: list[bool]
) -> tuple[list[dict[str, Any]], list[bool]]:
    if not isinstance(system, str):
        raise ValueError(f"system: got {system!r:.60}, expected text")
    if messages and messages[0]["role"] == "system":
        if messages[0].get("content") == system:
            return messages, learns
        raise ValueError("system: the conversation begins with another system message; keep one")
    return [{"role": "system", "content": system}, *messages], [False, *learns]


# ------------------------------------------------------------------ tools
def tools_of(row: Fields, notes: Notes) -> list[dict[str, Any]] | None:
    """Return the tools of a row in OpenAI's form.

    Raises:
        ValueError: they are of no known form.
    """
    given = [name for name in ("tools", "functions") if row.get(name)]
    if len(given) > 1:
        raise ValueError("tools and functions: which of them does the model see? Keep one")
    if not given:
        return None
    (name,) = given
    value = row[name]
    if isinstance(value, str) and not value.strip():
        return None
    found = _parsed(value, name)
    if is_dict(found) and ("name" in found or "function" in found):
        found = [found]
    if not is_list(found):
        raise ValueError(f"{name}: got {value!r:.60}, expected a list of tools")
    return [_tool(_parsed(one, name), f"{name}[{n}]", notes) for n, one in enumerate(found)] or None


def _tool(tool: Any, where: str, notes: Notes) -> dict[str, Any]:
    function = tool.get("function", tool) if is_dict(tool) else None
    if not is_dict(function) or not isinstance(function.get("name"), str):
        raise ValueError(
            f'{where}: got {tool!r:.80}, expected {{"type": "function", "function": {{"name": ..., '
            '"description": ..., "parameters": ...}}'
        )
    shown = {key: value for key, value in function.items() if value is not None}
    if function is tool:
        shown.pop("type", None)
        if "input_schema" in shown:
            shown["parameters"] = shown.pop("input_schema")
    if "parameters" in shown:
        schema = _parsed(shown["parameters"], f"{where}: parameters")
        if not is_dict(schema):
            raise ValueError(f"{where}: parameters: got {schema!r:.60}, expected a JSON schema")
        plain = _without_nulls(schema)
        if plain != schema:
            notes.add("tool whose schema has null fields (as Arrow fills them in), left out")
        shown["parameters"] = plain
    return {"type": "function", "function": shown}


_NULL_VALUES = ("default", "const", "enum", "examples", "example")


def _without_nulls(schema: Any) -> Any:
    """Return a JSON schema without null fields, which have a meaning only in values."""
    if is_list(schema):
        return [_without_nulls(one) for one in schema]
    if not is_dict(schema):
        return schema
    return {
        key: value if key in _NULL_VALUES else _without_nulls(value)
        for key, value in schema.items()
        if value is not None or key in _NULL_VALUES
    }


def _properties(tools: Sequence[Fields] | None) -> dict[str, frozenset[str]]:
    """Return the names of each tool's arguments."""
    return {
        tool["function"]["name"]: frozenset(
            (tool["function"].get("parameters") or {}).get("properties") or ()
        )
        for tool in tools or ()
    }


def _without_fillers(
    message: dict[str, Any], known: Mapping[str, frozenset[str]], notes: Notes
) -> dict[str, Any]:
    """Return a message whose calls lack null arguments that their tools do not have: Arrow gives
    every call the arguments of all others."""
    if not message.get("tool_calls"):
        return message
    calls = [_without_filler(call, known, notes) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _without_filler(
    call: dict[str, Any], known: Mapping[str, frozenset[str]], notes: Notes
) -> dict[str, Any]:
    function = call["function"]
    own, arguments = known.get(function["name"]), function["arguments"]
    if own is None or not is_dict(arguments):
        return call
    kept = {key: value for key, value in arguments.items() if value is not None or key in own}
    if len(kept) < len(arguments):
        notes.add("call with null arguments that its tool does not have, left out")
    return {**call, "function": {**function, "arguments": kept}}


def _note_columns(row: Fields, notes: Notes) -> None:
    """Note the columns that are not read."""
    read = {*_READ, *_LISTS}
    if not any(row.get(name) is not None for name in _LISTS):
        read |= {"prompt", "completion"}
    notes.columns |= {name for name in row if name not in read and row[name] not in (None, "", [])}
