"""The tools that a request offers, of any API, and its choice among them.

A model sees functions. These become functions, too: tools whose call is a free text (`custom` tools
of OpenAI's APIs), with the text as their only argument; and the shell and the editor of Anthropic's
API, which the client runs and whose arguments are known. All other tools are left out of the
prompt: they are built into the service (`web_search`), or loaded only when they are searched
for (`defer_loading`). A request that forces one of these is refused.

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentgym_rl.gateway.errors import bad_request, unsupported

Tool = Mapping[str, Any]
Tools = Sequence[Tool]

_log = logging.getLogger(__name__)

_INPUT = "input"
"""The argument of a function that stands for a tool whose call is a text."""
_MOST_NAMED = 20
"""The maximum number of tools that warnings name."""
BUILT_IN = "is built into a service that is not here"
_DEFERRED = "is to be loaded only when a search finds it (defer_loading), and there is no search"
_SCHEMAS = ("function", "parameters", "input_schema")
"""The fields of functions: an entry with one of them is not a tool of the service."""
_WITH_SCHEMAS = ("builtin_function", "tool_search")
"""The types of tools to leave out that may have such a field: a client's own search (Codex) finds
only tools with `defer_loading`, which are left out, too."""
_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_CLIENTS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "bash_": (
        "Run a command in a persistent bash shell; `restart` starts a new shell.",
        {"command": _STRING, "restart": {"type": "boolean"}},
        (),
    ),
    "text_editor_": (
        "View, create and edit files. `view` shows a file (the lines of view_range) or a folder; "
        "`create` writes file_text; `str_replace` replaces the only old_str by new_str; `insert` "
        "puts insert_text behind line insert_line.",
        {
            "command": {"enum": ["view", "create", "str_replace", "insert"]},
            "path": _STRING,
            **dict.fromkeys(("file_text", "old_str", "new_str", "insert_text"), _STRING),
            "insert_line": _NUMBER,
            "view_range": {"type": "array", "items": _NUMBER},
        },
        ("command", "path"),
    ),
}
"""The tools that Anthropic's clients run, by the beginning of their type: description, arguments
and those that are required."""


@dataclass(frozen=True, slots=True)
class OmittedTool:
    """A tool that is left out of the prompt, by its name in `tool_choice` and in the log."""

    name: str
    why: str


@dataclass(slots=True)
class Offer:
    """The tools of one request."""

    functions: list[Tool] = field(default_factory=list[Tool])
    """The functions that the model sees."""
    texts: set[str] = field(default_factory=set[str])
    """The names of those whose call is a text to the client."""
    omitted: list[OmittedTool] = field(default_factory=list[OmittedTool])

    def add(self, function: Mapping[str, Any]) -> None:
        """Add a function with its name, description and parameters; null fields count as absent."""
        given = {name: value for name, value in function.items() if value is not None}
        self.functions.append({"type": "function", "function": given})

    def add_text(self, name: str, description: str | None, form: Any, where: str) -> None:
        """Add a tool whose call is a text, by `form` (a grammar is shown, and not enforced)."""
        schema = {"type": "string", "description": f"The text.{_syntax(form, where)}"}
        parameters = {"type": "object", "properties": {_INPUT: schema}, "required": [_INPUT]}
        closed = {**parameters, "additionalProperties": False}
        self.add({"name": name, "description": description, "parameters": closed})
        self.texts.add(name)

    def add_other(self, item: Mapping[str, Any], where: str, *, allowed: str) -> None:
        """Add a tool that is neither a function nor a custom tool: a client's tool of a known type,
        or a tool to leave out."""
        kind, name = item.get("type"), item.get("name")
        schema = next((name for name in _SCHEMAS if name in item), None)
        if not isinstance(kind, str) or (schema and kind not in _WITH_SCHEMAS):
            got = f"type {kind!r}" + (f" with {schema}" if schema else "")
            others = "or a tool of the service, without a schema"
            why = f"{where}: got {got}, allowed: {allowed}, {others}"
            raise bad_request(why, param=where)
        name = name if isinstance(name, str) and name else kind
        known = next((one for start, one in _CLIENTS.items() if kind.startswith(start)), None)
        if known is None:
            return self.omit(name, BUILT_IN + ("" if name == kind else f" (its type is {kind})"))
        description, properties, required = known
        parameters = {"type": "object", "properties": properties, "required": list(required)}
        self.add({"name": name, "description": description, "parameters": parameters})

    def omit(self, name: str, why: str = _DEFERRED) -> None:
        """Leave a tool out."""
        self.omitted.append(OmittedTool(name, why))

    # ------------------------------------------------------------------ the choice
    def chosen(self, given: Any) -> ToolChoice:
        """Parse OpenAI's `tool_choice`, of chat completions or Responses; None is "auto"."""
        if given in (None, "auto"):
            return ToolChoice(reads=True)
        if given == "none":
            return ToolChoice(reads=False)
        if given == "required":
            return self.any()
        kind = given.get("type") if isinstance(given, dict) else given
        if kind in ("function", "custom"):
            return self.one(_name_of(given))
        if kind == "allowed_tools":
            return self._allowed(given.get("allowed_tools", given))
        if isinstance(given, dict) and isinstance(kind, str) and self._omits(kind):
            return self.one(kind)
        allowed = "'auto', 'none', 'required', and objects of type 'function', 'custom' or "
        raise unsupported("tool_choice", f"got {given!r}, allowed: {allowed}'allowed_tools'")

    def one(self, name: str) -> ToolChoice:
        """Return a choice of exactly one call of the tool `name`."""
        return ToolChoice(True, forced=self._named([name]), single=True)

    def any(self) -> ToolChoice:
        """Return a choice of at least one call of any tool."""
        if not self.functions:
            left = f": {self._without()}" if self.omitted else ""
            why = f"tool_choice forces a call, but no tools are offered{left}."
            raise bad_request(why, param="tools")
        return ToolChoice(True, forced=self.functions)

    def _allowed(self, given: Any) -> ToolChoice:
        mode = given.get("mode") if isinstance(given, dict) else None
        if mode not in ("auto", "required"):
            why = f"tool_choice.allowed_tools.mode: got {mode!r}, allowed: 'auto', 'required'"
            raise bad_request(why, param="tool_choice")
        listed = given.get("tools")
        if not isinstance(listed, list) or not listed:
            why = "tool_choice.allowed_tools.tools lists no tools."
            raise bad_request(why, param="tool_choice")
        names = [self._listed(tool) for tool in listed]
        offered = [name for name in names if not self._omits(name)]
        if mode == "required" or not self.functions:
            return ToolChoice(True, forced=self._named(offered or names))
        if len(self._named(offered)) < len(self.functions):
            raise unsupported(
                "tool_choice.allowed_tools",
                "with mode 'auto' all tools must be allowed: a reply that is free to be text is "
                "not held to any grammar; use mode 'required', or offer fewer tools",
            )
        return ToolChoice(True)

    def _listed(self, tool: Any) -> str:
        kind = tool.get("type") if isinstance(tool, dict) else None
        return kind if isinstance(kind, str) and self._omits(kind) else _name_of(tool)

    def _omits(self, name: str) -> bool:
        return any(tool.name == name for tool in self.omitted)

    def _named(self, names: Sequence[str]) -> Tools:
        by_name = {tool["function"]["name"]: tool for tool in self.functions}
        for name in names:
            if name in by_name:
                continue
            if why := next((tool.why for tool in self.omitted if tool.name == name), ""):
                raise unsupported(
                    "tool_choice",
                    f"the tool {name!r} {why}, so no call of it can be forced; allowed: "
                    f"{', '.join(by_name) or 'no tool of this request'}; offer a function that "
                    "the client runs",
                )
            if not by_name:
                self.any()
            there = ", ".join(by_name)
            why = f"tool_choice: there is no tool {name!r}, there are {there}"
            raise bad_request(why, param="tool_choice")
        return [by_name[name] for name in dict.fromkeys(names)]

    def _without(self) -> str:
        return "; ".join(f"{tool.name!r} {tool.why}" for tool in self.omitted)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The meaning of `tool_choice` in any API: calls are read (`reads`), and of the `forced` tools
    at least one must be called, or exactly one (`single`)."""

    reads: bool
    forced: Tools | None = None
    single: bool = False


def _name_of(given: Any) -> str:
    """Return the name, which is in `function` or `custom` (chat completions) or next to the
    type."""
    holder = given.get("function", given.get("custom", given)) if isinstance(given, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str):
        raise bad_request(f"tool_choice: {given!r} names no function.", param="tool_choice")
    return name


def _syntax(form: Any, where: str) -> str:
    """Return the description of a text's grammar for the model; "" for any text."""
    given = {"type": "text"} if form is None else form if isinstance(form, dict) else {}
    if given.get("type") == "text":
        return ""
    inner = given.get("grammar", given) if given.get("type") == "grammar" else None
    named = [inner.get(key) for key in ("syntax", "definition")] if isinstance(inner, dict) else []
    if len(named) != 2 or not all(isinstance(text, str) for text in named):
        why = f'{where}.format: got {form!r:.100}, allowed: {{"type": "text"}} and {{"type": '
        raise bad_request(f'{why}"grammar", "syntax": ..., "definition": ...}}', param=where)
    return f" Its grammar ({named[0]}):\n{named[1]}"


# ---------------------------------------------------------------------- calls that are texts


def text_of_call(arguments: str) -> str:
    """Return the text of a call: its only argument, or the arguments as they are if the model did
    not write that argument."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments
    text = given.get(_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_of_text(text: str) -> str:
    """Return the arguments of the call whose text a client sends back."""
    return msgspec.json.encode({_INPUT: text}).decode()


def is_text_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether a function may stand for a tool whose call is a text."""
    properties = schema.get("properties")
    return isinstance(properties, dict) and properties.keys() == {_INPUT}


# ---------------------------------------------------------------------- the notice


class OmittedNames:
    """The omitted tools that were named in the log: each is named once."""

    def __init__(self) -> None:
        self._named = set[str]()

    def warn(self, tools: Sequence[OmittedTool]) -> None:
        """Name the tools that were not named before."""
        for tool in tools:
            if tool.name in self._named or len(self._named) == _MOST_NAMED:
                continue
            self._named.add(tool.name)
            _log.warning(
                "requests offer the tool %r, which %s: it is left out of the prompt",
                tool.name[:100],
                tool.why,
            )
