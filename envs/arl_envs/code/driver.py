"""The program inside the sandbox: it calls one function of the submission and reports the result.

The driver uses the standard library only, as its own text is sent in. An order (JSON) comes from
standard input, and one line of JSON goes to the original standard output. The driver gets no
expected value, so a submission that forges that line must still know the right answer.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from types import MappingProxyType
from typing import Any

MAX_DEPTH = 50
"""The largest depth of values inside values."""
LONG_BITS = 10_000
"""The bits from which a whole number is written in hexadecimal: other processes cannot read more
than 4300 decimal digits (14,000 bits)."""
MAX_EQUAL_HASHES = 100
"""The most different keys with one hash in a container: more are an attack on the comparison."""

Built = namedtuple("Built", "source args attributes")
"""An argument that only the submission's process can make: `source`, a name or an expression, is
evaluated there, then called with `args` unless they are None, then given `attributes`."""
Keyword = namedtuple("Keyword", "name value")
"""An argument that is given by its name."""
Built.__repr__ = lambda self: self.source + (f"({repr(self.args)[1:-1]})" if self.args else "")
Keyword.__repr__ = lambda self: f"{self.name}={self.value!r}"

NODES = ("ListNode", "TreeNode")
Nodes = namedtuple("Nodes", "kind values")
"""A linked list or a binary tree: the name of its class, and its values; those of a tree by levels,
with None for what is absent. There it is made of objects, here it is the list."""
Nodes.__repr__ = lambda self: f"{self.kind}({self.values!r})"
MAX_NODES = 1_000_000
"""The most nodes of a result: more are a circle."""

CONTAINERS = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
MAPPINGS = {Counter: "counter", OrderedDict: "ordered", dict: "dict"}
PLAIN = frozenset({"list", "tuple", "set", "frozenset", "dict", "float", "int"})
"""The kinds of plain values; `ALL` adds those for a comparison with Python's ==."""
ALL = PLAIN | {"like", "deque", "counter", "ordered", "bytes", "bytearray", "complex", "range"}
ALL |= {"decimal", "fraction", "nodes"}
ARGUMENTS = ALL | {"built", "keyword"}
_KINDS = {name: kind for kind, name in (CONTAINERS | MAPPINGS).items()}
_NUMBERS = {("decimal", "Decimal"): "decimal", ("fractions", "Fraction"): "fraction"}
_VIEWS = (type({}.keys()), type({}.items()))


def encode(value: Any, depth: int = 0) -> Any:
    """Return a value of built-in types as JSON that keeps the types and the order of dictionaries.

    Subclasses are marked as such and replaced by their content: no method of theirs is called.

    Raises:
        TypeError: the value, or something in it, is of any other type.
        ValueError: the value is nested too deeply.
    """
    if _is_long(value):
        return {"int": hex(value)}
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if depth >= MAX_DEPTH:
        raise ValueError("nested too deeply")
    if kind in MAPPINGS:
        pairs = kind.items(value)
        return {MAPPINGS[kind]: [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in pairs]}
    if kind in CONTAINERS:
        items = [encode(item, depth + 1) for item in value]
        if CONTAINERS[kind] in ("set", "frozenset"):
            items.sort(key=json.dumps)
        return {CONTAINERS[kind]: items}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if kind is range:
        return {"range": [encode(n) for n in (value.start, value.stop, value.step)]}
    if kind is Built:
        made = [value.args, value.attributes]
        return {"built": [value.source, *(encode(part, depth + 1) for part in made)]}
    if kind is Keyword:
        return {"keyword": [value.name, encode(value.value, depth + 1)]}
    if kind is Nodes:
        return {"nodes": [value.kind, encode(value.values, depth + 1)]}
    if kind.__name__ in NODES:
        return {"nodes": [kind.__name__, encode(_values_of(value, kind.__name__), depth + 1)]}
    if name := _NUMBERS.get((kind.__module__, kind.__qualname__)):
        if name == "fraction":
            return {name: [encode(value.numerator), encode(value.denominator)]}
        return {name: str(value)}
    if kind.__module__ == "numpy" and hasattr(kind, "item"):  # a number, unless an array
        return {"like": encode(value.item(), depth)}
    return {"like": encode(_held(value, kind), depth)}


def _is_long(value: Any) -> bool:
    return type(value) is int and value.bit_length() > LONG_BITS


def _values_of(node: Any, kind: str) -> list[Any]:
    """Return the values of a linked list, or of a tree by levels."""
    values: list[Any] = []
    if kind == "ListNode":
        while node is not None:
            values.append(node.val)
            node = _counted(node.next, values)
        return values
    level = [node]
    while level:
        below = []
        for node in level:
            values.append(None if node is None else node.val)
            if node is not None:
                below += [node.left, node.right]
        level = _counted(below, values)
    while values and values[-1] is None:
        values.pop()
    return values


def _counted(rest: Any, values: list[Any]) -> Any:
    if len(values) > MAX_NODES:
        raise ValueError("nodes without end")
    return rest


def _held(value: Any, kind: type) -> Any:
    """Return the content of an instance of a subclass of a built-in type."""
    if issubclass(kind, int):
        return int.__index__(value)
    if issubclass(kind, float):
        return float.__pos__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, complex):
        return complex.__pos__(value)
    if issubclass(kind, bytes):
        return bytes.__add__(value, b"")
    for base in MAPPINGS:
        if issubclass(kind, base):
            pairs = base.items(value)
            return Counter(dict(pairs)) if base is Counter else base(pairs)
    for base in CONTAINERS:
        if issubclass(kind, base):
            return base(base.__iter__(value))
    if kind in _VIEWS:
        return set(value)
    if kind is MappingProxyType:
        return dict(value)
    raise TypeError(f"{kind.__name__} is no plain value")


def decode(value: Any, kinds: Any = ARGUMENTS, names: Any = None) -> Any:
    """Return the value that `encode` was given, of these `kinds`; with `names`, make `Built` ones.

    Raises:
        ValueError, TypeError, KeyError, ArithmeticError: `value` is no output of `encode`.
    """
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind not in kinds:
        raise ValueError(f"{kind}: no kind of value that is allowed")
    if kind in ("built", "keyword"):
        parts = [decode(item, kinds, names) for item in items]
        made = Built(*parts) if kind == "built" else Keyword(*parts)
        return _make(made, names) if kind == "built" and names is not None else made
    if kind == "like":
        return decode(items, kinds, names)
    if kind == "nodes":
        return _nodes(Nodes(items[0], decode(items[1], kinds, names)), names)
    if kind in ("dict", "ordered", "counter"):
        pairs = dict([(decode(k, kinds, names), decode(v, kinds, names)) for k, v in items])
        return _KINDS[kind](_fair(pairs))
    if kind in _KINDS:
        parts = [decode(item, kinds, names) for item in items]
        return _KINDS[kind](_fair(parts) if kind in ("set", "frozenset") else parts)
    return _decode_atom(kind, items)


def _decode_atom(kind: str, said: Any) -> Any:
    if kind == "float":
        return float(said)
    if kind == "int":
        return int(said, 16)
    if kind == "complex":
        return complex(*map(decode, said))
    if kind == "range":
        return range(*map(decode, said))
    if kind == "decimal":
        from decimal import Decimal

        number = Decimal(said)
        if not number.is_finite() or abs(number.adjusted()) > 5000:
            raise ValueError("a decimal number that is too large")
        return number
    if kind == "fraction":
        from fractions import Fraction

        return Fraction(*map(int, map(decode, said)))
    return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(said)


def _fair(keys: Any) -> Any:
    if len(keys) > 1000 and max(Counter(map(hash, keys)).values()) > MAX_EQUAL_HASHES:
        raise ValueError("keys that are made to have one hash")
    return keys


def _make(built: Any, names: dict[str, Any]) -> Any:
    value = eval(built.source, names)
    if built.args is not None:
        positional, named = _arguments(built.args)
        value = value(*positional, **named)
    for name, attribute in (built.attributes or {}).items():
        setattr(value, name, attribute)
    return value


def _nodes(nodes: Nodes, names: Any) -> Any:
    """Return `nodes`; with `names`, as objects of the class of this name."""
    if nodes.kind not in NODES or not isinstance(nodes.values, list):
        raise ValueError("no nodes")
    if names is None or not nodes.values:
        return nodes if nodes.values and names is None else None
    make = names[nodes.kind]
    made = [None if value is None else make(value) for value in nodes.values]
    if nodes.kind == "ListNode":
        for at, node in enumerate(filter(None, made), 1):
            node.next = made[at] if at < len(made) else None
        return made[0]
    rest = iter(made[1:])
    for node in made:
        if node is not None:
            node.left, node.right = next(rest, None), next(rest, None)
    return made[0]


def _arguments(args: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments and the named ones."""
    named = {arg.name: arg.value for arg in args if type(arg) is Keyword}
    return [arg for arg in args if type(arg) is not Keyword], named


def main() -> None:
    results = os.dup(1)
    os.dup2(2, 1)  # output printed by the submission is not a result
    order = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    names: dict = {"__name__": "submission"}
    exec(order["prelude"], names)
    names.pop(order["entry"], None)  # an import of that name is not the submission's
    exec(compile(order["source"], "submission.py", "exec"), names)
    call = names.get(order["entry"])
    if call is None and "Solution" in names:
        call = getattr(names["Solution"](), order["entry"], None)
    if not callable(call):
        raise NameError(f"the submission defines no function called {order['entry']}")
    positional, named = _arguments(decode(order["args"], names=names))
    value = call(*positional, **named)
    try:
        said = {"value": encode(value)}
    except (TypeError, ValueError, RecursionError) as error:
        said = {"unfit": str(error)}
    data = json.dumps(said).encode() + b"\n"
    while data:
        data = data[os.write(results, data) :]


if __name__ == "__main__":
    main()
