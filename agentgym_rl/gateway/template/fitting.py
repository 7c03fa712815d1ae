"""The conversion of clients' messages into messages that a chat template accepts.

Clients send messages in OpenAI's form, and templates differ. Some have no place for tools, or for a
system message; some demand that users and assistants alternate. No template is known by name: a few
conversations are rendered, and the text shows what the template accepts (`Fitting.of`).

A template without tools gets them as text, in the form of Hermes models, with the fewest tokens:

    system      the system message, an empty line, then
                <tools>
                {"name":"add","description":"Add two numbers.","parameters":{...}}
                </tools>
                Call a tool by <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    assistant   Let me see.
                <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
    user        <tool_response>3</tool_response>

Results of several calls are lines of one user message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agentgym_rl.gateway.messages import own_id, text_of
from agentgym_rl.gateway.request.body import has_many_values

from .steps import EndlessTemplate
from .template import OPENING, SENTINEL, ChatTemplate

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None
Systems = Literal["anywhere", "first", "none"]
"""The places of system messages: anywhere, one at the front, or none at all."""

_HOW = 'Call a tool by <tool_call>{"name": ..., "arguments": {...}}</tool_call>'
_GAP = "\n\n"


@dataclass(frozen=True, slots=True)
class Fitting:
    """The message format a template expects, found by rendering; `fit` applies it."""

    string_arguments: bool
    """Whether the template writes string arguments as they are; others need objects."""
    short_ids: bool
    """Whether tool-call ids must be nine letters and digits, as Mistral's models need them."""
    systems: Systems
    """The places of system messages; without any, they go to the front of the first user's."""
    hides_tools: bool
    """Whether the template does not write the offered tools."""
    tools_as_text: bool
    """Whether tools go into the system message, since the template hides them."""
    calls_as_text: bool
    """Whether calls become text of the assistant's, since the template has neither tools nor calls;
    else its own form of calls stays."""
    results_as_text: bool
    """Whether results of tools become text of a user's."""
    alternates: bool
    """Whether users and assistants must alternate, so that neighbors of one role are merged."""
    needs_text: bool
    """Whether the template refuses an assistant's message without content."""
    header: str
    """The opening of an assistant's turn, for a template that ignores add_generation_prompt."""

    @classmethod
    def of(cls, template: ChatTemplate, *, may_fold: bool = True) -> Fitting:
        """Probe a template. `may_fold`: tools that it hides may become text."""
        strings, short = _takes_strings(template), _wants_short_ids(template)
        arguments = {"q": SENTINEL}
        call = _calling(_short_id("c"), json.dumps(arguments) if strings else arguments, name=_NAME)
        tools = _shown_tools(template)
        hides = tools is None
        folds = may_fold and hides
        as_text = folds and SENTINEL not in _text(template, [OPENING, call])
        answered = _text(template, [OPENING, call, _RESULT], tools)
        return cls(
            string_arguments=strings,
            short_ids=short,
            systems=_places(template),
            hides_tools=hides,
            tools_as_text=folds,
            calls_as_text=as_text,
            results_as_text=(folds or not hides) and (as_text or _SHOWN not in answered),
            alternates=_alternates(template),
            needs_text=_needs_text(template, call, tools),
            header=_header(template),
        )

    def fit(self, messages: Sequence[Message], tools: Tools) -> tuple[list[Message], Tools]:
        """Return messages and tools as the template takes them; contents are texts or None."""
        if self.moves_systems(messages):
            messages = _gathered(messages)
        messages = [self._fit(message) for message in messages]
        if self.results_as_text:
            messages = list(_results_folded(messages))
        if tools and self.tools_as_text:
            messages = _with_tools(messages, tools, how=self.calls_as_text)
        if self.systems == "none":
            messages = _without_system(messages)
        if self.alternates:
            messages = _merged(messages)
        return messages, None if self.tools_as_text else tools

    def moves_systems(self, messages: Sequence[Message]) -> bool:
        """Return whether system messages must be merged at the front."""
        late = any(message["role"] == "system" for message in messages[1:])
        return late and self.systems != "anywhere"

    def _fit(self, message: Message) -> Message:
        calls = message.get("tool_calls")
        if calls and self.calls_as_text:
            message = _call_folded(message)
        elif calls and not self.string_arguments:
            message = {**message, "tool_calls": [_parsed(call) for call in calls]}
        if message.get("content") is None and self.needs_text:
            message = {**message, "content": ""}
        return _with_ids(message, _short_id if self.short_ids else own_id)


def textual(message: Message) -> Message:
    """Return a message whose content is a text or None."""
    content = message.get("content")
    if isinstance(content, str):
        return message
    return {**message, "content": None if content is None else text_of(content)}


def with_texts(messages: Sequence[Message]) -> list[Message]:
    """Return messages that all have content."""
    return [{**one, "content": ""} if one.get("content") is None else one for one in messages]


def _call_folded(message: Message) -> Message:
    said = [message["content"]] if message.get("content") else []
    lines = [*said, *(_call_text(call["function"]) for call in message["tool_calls"])]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(lines)}


def _call_text(function: Message) -> str:
    """Return a call as the model writes it; one that is malformed has its text as arguments."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    elif not _is_object(arguments):
        return f"<tool_call>{arguments}</tool_call>"
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>{{"name": {name}, "arguments": {arguments}}}</tool_call>'


def _is_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _results_folded(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages, with tool messages as user messages, neighbors joined."""
    lines: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            lines.append(f"<tool_response>{message.get('content') or ''}</tool_response>")
            continue
        if lines:
            yield _user("\n".join(lines))
            lines = []
        yield message
    if lines:
        yield _user("\n".join(lines))


def _with_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, how: bool
) -> list[Message]:
    """Return messages whose first one is a system message that ends with the tools. `how`: whether
    the message also explains how to call a tool."""
    schemas = (
        json.dumps(tool["function"], ensure_ascii=False, separators=(",", ":")) for tool in tools
    )
    listed = "\n".join(["<tools>", *schemas, "</tools>", *([_HOW] if how else [])])
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": listed}, *messages]
    first, *others = messages
    return [{**first, "content": _joined(first.get("content"), listed)}, *others]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the system message, if any, in front of the first user's text."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    said, others = messages[0].get("content"), list(messages[1:])
    if others and others[0]["role"] == "user":
        first = others.pop(0)
        return [{**first, "content": _joined(said, first.get("content"))}, *others]
    return [_user(said or ""), *others]


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which neighbors are one if both are a user's or an assistant's."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is None or last["role"] != message["role"] or message["role"] == "tool":
            found.append(message)
            continue
        calls = [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        both = {**last, "content": _joined(last.get("content"), message.get("content"))}
        found[-1] = {**both, "tool_calls": calls} if calls else both
    return found


def _gathered(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with all system messages merged into one, at the front."""
    systems = [message.get("content") for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": _joined(*systems)}, *others]


def _joined(*texts: str | None) -> str:
    return _GAP.join(filter(None, texts))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _parsed(call: Message) -> Message:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str) and has_many_values(arguments):
        return call
    try:
        function["arguments"] = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, TypeError, RecursionError):  # the template gets the text itself
        return call
    return {**call, "function": function}


def _with_ids(message: Message, change: Callable[[Any], Any]) -> Message:
    if id := message.get("tool_call_id"):
        return {**message, "tool_call_id": change(id)}
    if calls := message.get("tool_calls"):
        pairs = ((call, change(call.get("id"))) for call in calls)
        calls = [call if id is None else {**call, "id": id} for call, id in pairs]
        return {**message, "tool_calls": calls}
    return message


def _short_id(id: Any) -> str:
    """Return nine letters and digits, the model's own if it wrote some; equal ids stay equal."""
    if (own := own_id(id)) != id and len(own) == 9 and own.isalnum() and own.isascii():
        return own
    return hashlib.blake2b(str(id).encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


# The probes: conversations that show what a template writes, or refuses.

_SHOWN = SENTINEL[::-1]
_NAME = f"f_{SENTINEL}"
_SAID = {"role": "assistant", "content": "Well."}
_KEY = {"type": "string", "description": "The key."}


def _tool(parameters: Mapping[str, Any], **more: Any) -> list[Mapping[str, Any]]:
    function = {"name": _NAME, "description": "Look it up.", "parameters": parameters, **more}
    return [{"type": "function", "function": function}]


_TOOLS = (
    _tool(
        {
            "type": "object",
            "properties": {"q": {**_KEY, "enum": ["a", "b"]}, "n": {**_KEY, "type": "integer"}},
            "required": ["q"],
        }
    ),
    _tool({"type": "object", "properties": {"q": _KEY}, "required": ["q"]}),
    _tool({"type": "object", "properties": {"q": _KEY}}),
    _tool({"type": "object", "properties": {}}),
    _tool(
        {
            "type": "object",
            "title": "Parameters",
            "additionalProperties": False,
            "properties": {"q": {**_KEY, "title": "Q", "default": "a"}},
            "required": ["q"],
        },
        strict=True,
        **{"return": {"type": "string", "description": "The value."}},
    ),
)
"""The sets of tools, of which a template must show one: templates may refuse a schema for a key
that it has or lacks."""
_RESULT = {
    **{"role": "tool", "tool_call_id": _short_id("c"), "name": _NAME},
    "content": _SHOWN,
}


def _text(template: ChatTemplate, messages: Sequence[Message], tools: Tools = None) -> str:
    """Return the rendered messages; "" if the template refuses them."""
    return _shown(template, messages, tools) or ""


def _shown(
    template: ChatTemplate, messages: Sequence[Message], tools: Tools = None, **options: Any
) -> str | None:
    """Return the rendered messages; None if the template refuses them.

    Raises:
        EndlessTemplate: the rendering does not end.
    """
    try:
        return template.render(messages, tools, **options)
    except EndlessTemplate:
        raise
    except ValueError:
        return None


def _calling(id: str, arguments: Any, *, name: str = "f") -> dict[str, Any]:
    call = {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _takes_strings(template: ChatTemplate) -> bool:
    arguments = '{"q":  "x"}'
    if arguments not in _text(template, [OPENING, _calling("c", arguments)]):
        return False
    # some write a string as it is "just in case", and objects in a notation of their own
    objects = _shown(template, [OPENING, _calling("c", {"q": "x"})])
    return objects is None or '"q"' in objects


def _wants_short_ids(template: ChatTemplate) -> bool:
    if _shown(template, [OPENING, _calling("call_0_0", {})]) is not None:
        return False
    return _shown(template, [OPENING, _calling(_short_id("call_0_0"), {})]) is not None


def _places(template: ChatTemplate) -> Systems:
    """Return the places where the template shows system messages."""
    first, late = ({"role": "system", "content": text} for text in (".", SENTINEL))
    second = _text(template, [first, late, OPENING])
    behind = _text(template, [OPENING, _SAID, late, OPENING])
    if SENTINEL in second and SENTINEL in behind.partition("Well.")[2]:
        return "anywhere"
    leads = SENTINEL in _text(template, [late, OPENING])
    return "first" if leads or _shown(template, [OPENING]) is None else "none"


def _shown_tools(template: ChatTemplate) -> Tools:
    """Return tools whose name the template writes into the prompt; None if it writes none."""
    heads: Sequence[list[Message]] = ([], [{"role": "system", "content": "."}])
    for tools in _TOOLS:
        if any(SENTINEL in _text(template, [*head, OPENING], tools) for head in heads):
            return tools
    return None


def _alternates(template: ChatTemplate) -> bool:
    """Return whether a second user message is refused unless an assistant message is between."""
    between = _shown(template, [OPENING, _SAID, OPENING])
    return between is not None and _shown(template, [OPENING, OPENING]) is None


def _needs_text(template: ChatTemplate, call: Message, tools: Tools) -> bool:
    """Return whether a message with a call is refused without content, but not with the content
    ""."""
    bare = {**call, "content": None}
    places: Sequence[tuple[Sequence[Message], Sequence[Message]]] = (
        ([OPENING], []),
        ([OPENING], [_RESULT]),
        ([OPENING], [_RESULT, _SAID, OPENING]),
        ([OPENING, call, _RESULT], [_RESULT]),
        ([], [_RESULT]),
    )
    for before, after in places:
        filled = _shown(template, [*before, call, *after], tools)
        if filled is not None and _shown(template, [*before, bare, *after], tools) is None:
            return True
    return False


def _header(template: ChatTemplate) -> str:
    """Return the text that opens an assistant's turn if the template has no generation prompt; ""
    if it has one, needs none, or the text is not always the same."""
    found = set[str]()
    said = {"role": "assistant", "content": SENTINEL}
    for before in ([OPENING], [OPENING, _SAID, OPENING]):
        prompt = _text(template, before)
        if prompt != _shown(template, before, add_generation_prompt=False):
            return ""
        head, shown, _ = _text(template, [*before, said]).partition(SENTINEL)
        opening = head.removeprefix(prompt)
        if not prompt or not shown or not opening.strip() or opening == head:
            return ""
        found.add(opening)
    return found.pop() if len(found) == 1 else ""


def opening_of(template: ChatTemplate, special: re.Pattern[str]) -> str:
    """Return the text between a user's message and the assistant's; "" if it has nothing but one
    special token, which anyone may write."""
    opening = _text(template, [{**OPENING, "content": SENTINEL}]).rpartition(SENTINEL)[2]
    opening = opening.partition("<think>")[0].strip()
    found = special.search(opening)
    return opening if found and found[0] != opening else ""
