"""The costs of operations in chat templates, in bytes that are read and made; slow operations cost
more.

The tables have the filters and methods that templates use. One that is in no table is assumed to be
the worst: it may repeat all of its arguments as many times as the largest number among them.
"""

from __future__ import annotations

import re
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    KeysView,
    Mapping,
    Sequence,
    Sized,
    ValuesView,
)
from itertools import chain
from typing import Any, cast

from jinja2.utils import Namespace

PER_STEP = 128
"""The number of bytes that count as one step."""
PER_ITEM = 64
"""The bytes of an item in a new list, and the cost of reading an item."""
VIEWS = (ItemsView, KeysView, ValuesView)
_NODE = 16
"""The least number of bytes of a value inside another one."""
_USUAL_INDENT = 16
_ENCODINGS = frozenset({"utf-8", "utf8", "ascii", "latin-1", "strict", "ignore", "replace"})
_REPR = 4
"""The largest factor by which a value grows when it is written as Python source."""
_DIGITS = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*\{")
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

Args = Sequence[Any]
Named = Mapping[str, Any]
Cost = Callable[[Args, Named, bool], int]
"""A function of the positional and named arguments, and of whether the template has made lists
itself."""


def deep_size(value: Any, known: dict[int, int] | None = None) -> int:
    """Return the size of a value as if every part of it were written out; parts that it contains
    several times are visited once."""
    if isinstance(value, str | bytes):
        return len(value) + _NODE
    if isinstance(value, int):
        return _NODE + value.bit_length() // 2
    if isinstance(value, Namespace):
        value = cast(Any, value)._Namespace__attrs
    if isinstance(value, Mapping):
        parts: Iterable[Any] = chain.from_iterable(cast(Mapping[Any, Any], value).items())
    elif isinstance(value, (list, tuple, set, frozenset, *VIEWS)):
        parts = cast(Iterable[Any], value)
    else:
        return _NODE
    known = {} if known is None else known
    found = known.get(id(value))
    if found is None:
        known[id(value)] = _NODE  # a value inside itself is written as "..."
        known[id(value)] = found = _NODE + sum(deep_size(part, known) for part in parts)
    return found


def weight(value: Any, made: bool) -> int:
    """Return the size of a value that is read completely.

    An object of the input is no larger than the request, and the cost of objects made from it is
    counted. A template's own lists (`made`) may hold one object any number of times, at no cost.
    """
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 8
    return deep_size(value) if made or isinstance(value, Namespace) else 0


def written(value: Any, made: bool) -> int:
    """Return the cost of a value's text."""
    size = weight(value, made)
    return size if isinstance(value, str) else _REPR * size


def of_percent(form: str | bytes, given: Any, made: bool) -> int:
    """Return the cost of `form % given`."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    values: Any = given if isinstance(given, tuple) else (given,)
    wide = _numbers(text) + (_sum_of_ints(values) if "*" in text else 0)
    return len(text) + wide + text.count("%") * sum(written(value, made) for value in values)


def of_format(text: str, args: Args, named: Named, made: bool) -> int:
    """Return the cost of `text.format(*args, **named)`."""
    values = [*args, *named.values()]
    wide = _numbers(text) + (_sum_of_ints(values) if _NESTED.search(text) else 0)
    return len(text) + wide + text.count("{") * sum(written(value, made) for value in values)


def of_function(function: Any, args: Args, named: Named, made: bool) -> int:
    """Return the cost of calling a function that is no method of a built-in type."""
    wrapped = getattr(function, "__wrapped__", None)
    text = getattr(wrapped, "__self__", None)
    if isinstance(text, str):  # the sandbox's own `format`
        return of_format(text, args, named, made)
    return sum(_length(value) + weight(value, made) // 8 for value in (*args, *named.values()))


def of_method(method: Any, args: Args, named: Named, made: bool) -> int:
    """Return the cost of calling a method of a built-in type."""
    text, name = method.__self__, method.__name__
    if type(text) is str or isinstance(text, bytes | str):
        if name in _READING:
            if len(text) < PER_STEP and not args:
                return 0
            return len(text) * (1 + sum(len(one) for one in args if isinstance(one, str)) // 64)
        if cost := _METHODS.get(name):
            return cost((text, *args), named, made)
    return worst((text, *args), named, made)


def worst(args: Args, named: Named, made: bool) -> int:
    """Return the cost of an unknown operation."""
    values = [*args, *named.values()]
    size = sum(written(value, made) + _length(value) for value in values) + _sum_of_ints(values)
    return size + size * size // 256


def _numbers(form: str) -> int:
    """Return the sum of the numbers in a format: widths and precisions."""
    return sum(int(found) for found in _DIGITS.findall(form))


def _sum_of_ints(values: Iterable[Any]) -> int:
    return sum(abs(value) for value in values if isinstance(value, int))


def _length(value: Any) -> int:
    """Return the cost of a list of a value's items; 0 for a text."""
    if isinstance(value, str | bytes) or not isinstance(value, Sized):
        return 0
    return PER_ITEM * len(value)


def _given(args: Args, named: Named, index: int, name: str, default: Any) -> Any:
    """Return an argument by position or name."""
    return args[index] if len(args) > index else named.get(name, default)


def _times(factor: int) -> Cost:
    """Return the cost of reading all arguments, `factor` for each byte."""

    def cost(args: Args, named: Named, made: bool) -> int:
        if len(args) == 1 and not named:
            return factor * written(args[0], made)
        return factor * sum(written(value, made) for value in (*args, *named.values()))

    return cost


def _items(factor: int) -> Cost:
    """Return the cost of a list of the first argument's items, `factor` for each byte compared."""

    def cost(args: Args, named: Named, made: bool) -> int:
        value = args[0]
        many = PER_ITEM * len(value) if isinstance(value, Sized) else 0
        numbers = PER_ITEM * _sum_of_ints((*args[1:], *named.values()))
        return many + numbers + (factor * weight(value, made) if factor else 0)

    return cost


def _replaced(args: Args, named: Named, made: bool) -> int:
    text = args[0]
    old, new = _given(args, named, 1, "old", ""), _given(args, named, 2, "new", "")
    if not (isinstance(text, str | bytes) and type(old) is type(text) is type(new)):
        return worst(args, named, made)
    count = text.count(old) if len(new) > len(old) else 0  # pyright: ignore
    return len(text) + count * (len(new) - len(old))


def _joined(args: Args, named: Named, made: bool) -> int:
    """Return the cost of the filter `join`."""
    items, between = args[0], _given(args, named, 1, "d", "")
    count = len(items) if isinstance(items, Sized) else 0
    read = written(items, made) if made or isinstance(items, str) else _texts(items)
    return read + count * (PER_ITEM + written(between, made))


def _joins(args: Args, named: Named, made: bool) -> int:
    """Return the cost of the method `join`."""
    return _joined((args[1], args[0]), {}, made) if len(args) == 2 else 0


def _texts(items: Any) -> int:
    found = items if isinstance(items, list | tuple) else ()
    return sum(len(item) for item in cast(Sequence[Any], found) if isinstance(item, str))


def _indented(args: Args, named: Named, made: bool) -> int:
    text, width = args[0], _given(args, named, 1, "width", 4)
    if not isinstance(text, str):
        return worst(args, named, made)
    lines = 1 + sum(text.count(end) for end in _LINE_ENDS)
    return len(text) + lines * (abs(width) if isinstance(width, int) else weight(width, made))


def _padded(args: Args, named: Named, made: bool) -> int:
    return _times(1)(args, named, made) + _sum_of_ints((*args[1:], *named.values()))


def _json(args: Args, named: Named, made: bool) -> int:
    value, indent = args[0], _given(args, named, 2, "indent", None)
    size = 6 * weight(value, made)
    between = _given(args, named, 3, "separators", None) or ()
    wide = sum(weight(each, made) for each in between)
    if indent is None and not between:
        return size
    wide += abs(indent) if isinstance(indent, int) else weight(indent, made)
    if wide <= _USUAL_INDENT:
        return size
    # no value is nested deeper than Python's stack
    return size + wide * max(weight(value, True), 1_000)


def _formatted(args: Args, named: Named, made: bool) -> int:
    return of_percent(str(args[0]), args[1:] or dict(named), made)


def _split(args: Args, named: Named, made: bool) -> int:
    text, between = args[0], _given(args, named, 1, "sep", None)
    if type(between) is type(text) and between:
        return 2 * len(text) + PER_ITEM * text.count(between)
    return PER_ITEM // 2 * len(text)


def _encoded(args: Args, named: Named, made: bool) -> int:
    if {*args[1:], *named.values()} <= _ENCODINGS:
        return 4 * len(args[0])
    return worst(args, named, made)


def _expanded(args: Args, named: Named, made: bool) -> int:
    wide = _given(args, named, 1, "tabsize", 8)
    tabs = args[0].count("\t" if isinstance(args[0], str) else b"\t")
    return len(args[0]) + (tabs * abs(wide) if isinstance(wide, int) else 0)


def _stripped(args: Args, named: Named, made: bool) -> int:
    """Return the cost of `striptags`, which copies the text for every tag."""
    text = args[0]
    if not isinstance(text, str):
        return worst(args, named, made)
    return len(text) * (PER_ITEM + text.count("<"))


FREE = frozenset(
    {
        *("abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "int"),
        *("items", "last", "length"),
    }
)
"""The filters whose time does not depend on a value's size."""
FREE_TESTS = frozenset(
    {
        *("boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter"),
        *("float", "integer", "iterable", "mapping", "none", "number", "odd", "sameas"),
        *("sequence", "string", "test", "true", "undefined"),
    }
)
"""The tests whose time does not depend on a value's size."""
LAZY = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
"""The filters that pass items on one by one."""
REPEATING = frozenset({"batch", "slice"})
"""The filters that may put one value into a list many times."""
PLAIN = frozenset({"capitalize", "lower", "safe", "string", "trim", "upper"})
"""The filters that return about the same text."""
FILTERS: Mapping[str, Cost] = {
    **dict.fromkeys(PLAIN, _times(1)),
    **dict.fromkeys(("escape", "e", "forceescape", "xmlattr"), _times(8)),
    **dict.fromkeys(("title", "truncate", "urlencode"), _times(16)),
    **dict.fromkeys(("wordcount",), _times(64)),
    **dict.fromkeys(("urlize",), _times(512)),
    **dict.fromkeys(("pprint",), _times(4096)),
    **dict.fromkeys(LAZY, _items(0)),
    **dict.fromkeys(("list", "reverse", *REPEATING), _items(0)),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _items(8)),
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "striptags": _stripped,
    "tojson": _json,
}
TEXTS = frozenset(
    {
        *("capitalize", "center", "e", "escape", "forceescape", "format", "indent", "join"),
        *("lower", "replace", "safe", "string", "title", "tojson", "trim", "truncate", "upper"),
    }
)
"""The filters whose result is always a text."""
FREE_METHODS = frozenset({"endswith", "get", "items", "keys", "startswith", "values"})
_READING = frozenset(
    {
        *("capitalize", "casefold", "count", "find", "index", "isalnum", "isalpha", "isascii"),
        *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable"),
        *("isspace", "istitle", "isupper", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "rfind", "rindex", "rpartition", "rstrip", "strip", "swapcase"),
        *("title", "upper"),
    }
)
"""The methods of texts whose result is about as long as the text, or shorter."""
TEXT_METHODS = _READING | {"endswith", "join", "replace", "split", "splitlines", "startswith"}
"""The methods of texts whose only cost is the size of their results."""
_METHODS: Mapping[str, Cost] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill"), _padded),
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": lambda args, named, made: PER_ITEM * len(args[0]) // 2,
    "encode": _encoded,
    "decode": _encoded,
    "expandtabs": _expanded,
    "join": _joins,
    "replace": _replaced,
}
