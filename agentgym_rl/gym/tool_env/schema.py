"""A tool made from a function: its schema comes from the type hints and the docstring."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from agentgym_rl.core import ToolSpec, is_dict, is_list

from .calls import BadCall

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__arl_tool__"
_UNBOUND: tuple[type[Any], ...] = (staticmethod, classmethod)
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*")
_ARGUMENT = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?:\s*(?P<text>.*)")
_MAX_PROBLEMS = 3


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, name: str = ..., description: str = ...) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", description: str = ""
) -> Any:
    """Offer a method (`def` or `async def`) of a `ToolEnv` to the agent.

    The hints give the types of the arguments (any type that pydantic supports; Annotated with Field
    adds bounds and descriptions). The docstring's first paragraph is the description; its `Args:`
    section describes the arguments. `name` and `description` override these.
    """

    def mark(found: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(found) and not isinstance(found, _UNBOUND):
            kind = type(found).__name__
            raise TypeError(f"@tool: got a {kind}, expected a method: write `def` below `@tool`")
        setattr(found, _MARK, (name, description))
        return found

    return mark if function is None else mark(function)


def is_tool(value: Any) -> bool:
    """Return whether `value` is decorated with `@tool`."""
    inside = isinstance(value, _UNBOUND) and hasattr(value.__func__, _MARK)
    return inside or hasattr(value, _MARK)


@dataclass(frozen=True)
class Tool:
    """A function that an agent may call."""

    name: str
    spec: ToolSpec
    """The OpenAI function schema."""
    function: Callable[..., Any]
    signature: str
    """The expected form, shown after a bad call: `refund(order: integer, fast?: boolean)`"""
    _adapter: TypeAdapter[dict[str, Any]]

    @classmethod
    def of(cls, function: Callable[..., Any], *, method: bool = False) -> Tool:
        """Make a tool from `function`; the first parameter of a `method` is left out.

        Raises:
            TypeError: a parameter has no type hint or cannot be passed by name, or the docstring
                describes a parameter that does not exist.
        """
        mark = getattr(function, _MARK, None)
        method = method and not isinstance(function, _UNBOUND[:1])
        function = _plain(function)
        name, description = mark or getattr(function, _MARK, ("", ""))
        name = name or function.__name__
        adapter, names = _adapter(function, method)
        found, described = _documented(inspect.getdoc(function) or "")
        if unknown := described.keys() - names:
            raise TypeError(f"tool {name}: its docstring describes {sorted(unknown)}: no parameter")
        parameters = _parameters(adapter.json_schema(), described)
        spec: ToolSpec = {"name": name, "description": description or found}
        return cls(
            name=name,
            spec={"type": "function", "function": {**spec, "parameters": parameters}},
            function=function,
            signature=f"{name}({_expected(parameters)})",
            _adapter=adapter,
        )

    def read(self, arguments: str) -> dict[str, Any]:
        """Parse the arguments into the types of the function's hints.

        Parsing is as strict as JSON allows: "3" is not an integer, nor is 3.0; 3 is a number, and a
        date or an enum's value is a string. So a policy is rewarded only for well-formed calls.

        Raises:
            BadCall: the arguments are invalid; the message has the expected form.
        """
        try:
            return self._adapter.validate_json(arguments or "{}")
        except ValidationError as error:
            raise BadCall(f"{_problems(error)}; expected {self.signature}") from error


def _plain(method: Any) -> Callable[..., Any]:
    """Return a function that is called with the environment, even for a static or class method."""
    if not isinstance(method, _UNBOUND):
        return method
    inner, of_class = method.__func__, isinstance(method, _UNBOUND[1:])

    @functools.wraps(inner)
    def call(env: object, /, **arguments: Any) -> Any:
        return inner(type(env), **arguments) if of_class else inner(**arguments)

    return call


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with its type hints as types; a hint in quotes must be a known name."""
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        bare = inspect.signature(function)
        hints = {f"parameter {name}": it.annotation for name, it in bare.parameters.items()}
        hints["the result"] = bare.return_annotation
        name = getattr(error, "name", None)
        where = "; ".join(
            f"{it} has the type hint {hint!r}"
            for it, hint in hints.items()
            if isinstance(hint, str) and (not name or re.search(rf"\b{re.escape(name)}\b", hint))
        )
        do = "import or define it in the module" if name else "write a type, such as list[int]"
        raise TypeError(f"tool {function.__name__}: {where}: {error}; {do}") from error


def _adapter(
    function: Callable[..., Any], method: bool
) -> tuple[TypeAdapter[dict[str, Any]], set[str]]:
    """Return an adapter that parses arguments into a dict, and the names of the parameters."""
    signature = _signature(function)
    parameters = list(signature.parameters.values())
    if method and not (parameters and _is_self(parameters[0])):
        raise TypeError(f"tool {function.__name__}: write `self` as its first parameter")
    parameters = parameters[1 if method else 0 :]
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise TypeError(f"tool {function.__name__}: {each} cannot be given by name")
        if each.annotation is each.empty:
            raise TypeError(f"tool {function.__name__}: parameter {each.name} has no type hint")

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    named = [each.replace(kind=each.KEYWORD_ONLY) for each in parameters]
    collect.__signature__ = inspect.Signature(named)  # pyright: ignore[reportFunctionMemberAccess]
    collect.__annotations__ = {each.name: each.annotation for each in named}
    takes: Any = collect  # a function is no type to a type checker
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(takes, config=_CONFIG)
        adapter.json_schema()
    except (PydanticUserError, NameError) as error:
        hints = {each.name: each.annotation for each in named}
        problem = str(error).partition(". ")[0].partition("\n")[0]
        raise TypeError(f"tool {function.__name__}: no JSON for {hints}: {problem}") from error
    return adapter, {each.name for each in named}


def _is_self(first: inspect.Parameter) -> bool:
    return first.name == "self" or first.annotation is first.empty


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring, and its `Args:` by name."""
    first = " ".join(text.split("\n\n", 1)[0].split())
    described: dict[str, str] = {}
    inside, margin, last = False, 0, ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if section := _SECTION.fullmatch(line):  # sections begin at the margin
            inside, margin = section[1].startswith("Arg"), 0
        elif inside and (words := line.strip()):
            margin = margin or indent
            found = _ARGUMENT.fullmatch(words) if indent <= margin else None
            last = found["name"] if found else last
            described[last] = f"{described.get(last, '')} {found['text'] if found else words}"
    return first, {name: text.strip() for name, text in described.items()}


def _parameters(schema: dict[str, Any], described: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema in its shortest form, with descriptions."""
    schema = _untitled(schema)
    properties = schema.get("properties", {})
    for name, text in described.items():
        properties[name].setdefault("description", text)
    kept = {key: schema[key] for key in ("required", "$defs") if key in schema}
    return {"type": "object", "properties": properties, **kept}


def _untitled(schema: Any) -> Any:
    """Remove the titles that pydantic generates from names; keep a property called title."""
    if is_list(schema):
        return [_untitled(each) for each in schema]
    if not is_dict(schema):
        return schema
    return {
        key: {name: _untitled(each) for name, each in value.items()}
        if key in ("properties", "$defs") and is_dict(value)
        else _untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _expected(parameters: Mapping[str, Any]) -> str:
    required = parameters.get("required", ())
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_word(schema)}"
        for name, schema in parameters["properties"].items()
    )


def _type_word(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return "|".join(map(repr, values))
    if "anyOf" in schema:
        return "|".join(_type_word(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1]
    return str(schema.get("type", "any"))


def _problems(error: ValidationError) -> str:
    """Describe the first few problems, without the input, which may be a megabyte."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] in ("json_invalid", "string_unicode", "arguments_type"):
        return "arguments are no JSON object"
    places = [".".join(map(str, each["loc"]))[:60] for each in found[:_MAX_PROBLEMS]]
    return "; ".join(
        f"{place}: {each['msg'][:120]}" for place, each in zip(places, found, strict=False)
    )
