"""The steps of a rendering, which bound its time and memory, and the checks that count them.

A template comes with a model folder, which may be from anyone. Jinja's sandbox keeps it from
Python, but not from `'a' | center(10**9)`. So a rendering may take a limited number of steps. An
iteration of a loop and a call take one each. A large text or list takes more, by the size of what
is made and of what is read to make it. The steps are counted before the work is done, where its
size is known. A function without an entry in the tables of `costs` costs as much as the worst one.
Processor time is limited, too.

Templates are rewritten once, when they are compiled: operations that may grow a value (`+`, `~`,
slices, loops, output) get a check. An ordinary rendering has only short values, for which these
checks cost almost no time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from agentgym_rl.core import ConfigError

from . import costs
from .costs import PER_STEP, Args

STEPS = " steps"
"""The variable with the steps left; no template can use this name."""
MAX_STEPS = 2_000_000
"""The limit of steps in one rendering, about a second of the event loop. A conversation of a
thousand messages takes about ten thousand."""
_MAX_CPU_S = 3.0
"""The limit of processor time in one rendering; ordinary ones take milliseconds."""
_GRANT = 1_000
"""The number of steps between two checks of the processor time."""
_FEW = 100
"""The size up to which a loop's items are counted at once: a longer loop may be left early."""
SHORT = 4_096
"""The size in bytes below which a value costs no steps."""
MAX_DIGITS = 100_000
"""The maximum number of binary digits of a product or power."""
_MAX_LENGTH = 16_000_000
"""The maximum length of one text."""
_LEAVES = 6
"""The number of operands of `+` after which the size of the sum is checked."""


class EndlessTemplate(ConfigError):
    """The error of a template whose rendering of the given messages does not end within its limits
    of time and memory."""


def endless(limit: str) -> EndlessTemplate:
    """Return the error for a template that needs more than a limit."""
    return EndlessTemplate(
        f"the chat template needs {limit} for one rendering, and seems never to end: give the "
        "model's folder a chat template that ends"
    )


class Steps:
    """The steps that one rendering has left."""

    __slots__ = ("_ends", "_messages", "_rest", "left", "made")

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.left = _GRANT
        self.made = False
        """Whether the template has made lists of its own, which may hold one value many times."""
        self._rest = MAX_STEPS - _GRANT
        self._messages: Sequence[Mapping[str, Any]] | None = messages
        self._ends = 0.0

    def more(self) -> None:
        """Grant more steps.

        Raises:
            EndlessTemplate: no steps are left, or the processor time is used up.
        """
        now = time.thread_time()
        self._ends = self._ends or now + _MAX_CPU_S
        wanted = _GRANT - self.left
        if wanted > self._rest and self._messages is not None:
            # some templates copy the conversation at every message
            chars = costs.deep_size(self._messages)
            self._rest += chars * (len(self._messages) + 50) // PER_STEP
            self._messages = None
        if wanted - _GRANT > self._rest:
            raise endless(f"more than {MAX_STEPS:,} steps (turns of loops, calls, large values)")
        if now > self._ends:
            raise endless(f"more than {_MAX_CPU_S:g} seconds of processor time")
        granted = min(wanted, self._rest)
        self._rest -= granted
        self.left += granted


def spend(context: Context, steps: int) -> None:
    """Take steps of a rendering.

    Raises:
        EndlessTemplate: too few are left.
    """
    left = cast(Steps, context.parent[STEPS])
    left.left -= steps
    if left.left < 0:
        left.more()


def pay(context: Context, size: int) -> None:
    """Take the steps for reading or making `size` bytes."""
    if size > SHORT:
        spend(context, size // PER_STEP)


def made(context: Context) -> bool:
    """Return whether the template has made lists of its own."""
    return cast(Steps, context.parent[STEPS]).made


def kept(context: Context, value: Any) -> Any:
    """Return a value that was made, and take the steps for its size."""
    if type(value) is str:
        if (size := len(value)) > SHORT:
            check_length(size)
            spend(context, size // PER_STEP)
    elif isinstance(value, list | tuple | dict):
        pay(context, costs.PER_ITEM * len(cast(Sequence[Any], value)))
    elif isinstance(value, str):
        check_length(len(value))
        pay(context, len(value))
    return value


def check_length(size: int) -> None:
    if size > _MAX_LENGTH:
        raise endless(f"a text of more than {_MAX_LENGTH:,} characters")


def joined(pieces: Iterable[str]) -> str:
    """Return the text of an output, from its pieces."""
    pieces = pieces if isinstance(pieces, list) else list(pieces)
    check_length(sum(map(len, pieces)))
    return "".join(pieces)


class TemplateNamespace(Namespace):
    """The function `namespace` of templates, which refuses names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportSelfClsParameterName]
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)  # pyright: ignore

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have {name!r}: it begins with an underscore")


# The checks that are inserted into templates when they are compiled, as filters whose names no
# template can write.


@pass_context
def _counted(context: Context, items: Any) -> Any:
    """Return the items of a loop, with its iterations counted."""
    if isinstance(items, list | tuple | str | dict) and len(items) <= _FEW:  # pyright: ignore
        spend(context, len(items))  # pyright: ignore
        return items  # pyright: ignore
    return counting(context, items)


def counting(context: Context, items: Any) -> Iterator[Any]:
    for item in items:
        spend(context, 1)
        yield item


@pass_context
def sized(context: Context, value: Any) -> Any:
    """Return the value of an expression that may be larger than its parts, with its size
    counted."""
    if type(value) is str and len(value) <= SHORT:
        return value
    if isinstance(value, list | tuple):
        return own(context, value)
    return kept(context, value)


@pass_context
def _sliced(context: Context, value: Any) -> Any:
    """Return a part of a text or list, with its size counted."""
    return kept(context, value)


@pass_context
def own(context: Context, value: Any) -> Any:
    """Return a list or dict that the template has made, with its size counted."""
    cast(Steps, context.parent[STEPS]).made = True
    if type(value) is tuple and any(type(part) is tuple for part in cast(Args, value)):
        pay(context, costs.PER_ITEM * costs.deep_size(value))  # a hash reads all of it
    return kept(context, value)


@pass_context
def _shown(context: Context, value: Any) -> Any:
    """Return a value that is to be written, with its size counted; a template's own objects are
    converted to text here."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value
    if not isinstance(value, _WRITTEN):
        if not isinstance(value, _PLAIN) and " at 0x" in str(value):
            raise TemplateRuntimeError(
                f"it writes a {kind.__name__}, whose text differs each time: call it, or make a "
                "list of it"
            )
        return value
    pay(context, costs.written(value, made(context)))
    text = str(cast(Any, value))
    check_length(len(text))
    spend(context, 1 + len(text) // PER_STEP)
    return text


_WRITTEN = (list, tuple, dict, Namespace, *costs.VIEWS)
"""The types whose text may be large."""
_PLAIN = (str, int, float, Undefined)


@pass_context
def scanned(context: Context, value: Any) -> Any:
    """Return a value that is searched or compared, with its size counted."""
    kind = type(value)
    if kind is str:
        if len(value) > SHORT:
            spend(context, len(value) // (8 * PER_STEP))
    elif kind in _SCANNED and made(context):
        pay(context, costs.deep_size(value) // 8)
    return value


_SCANNED = frozenset({list, tuple, dict, TemplateNamespace})
CHECKS = {
    "counted turns": _counted,
    "sized value": sized,
    "sliced value": _sliced,
    "own value": own,
    "shown value": _shown,
    "scanned value": scanned,
}


class Checks(NodeTransformer):
    """The rewriting of a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _checked(node.iter, "counted turns")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            each if _is_text(each) else _checked(each, "shown value") for each in node.nodes
        ]
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        self._sum(node)
        return _checked(node, "sized value")

    def _sum(self, node: nodes.Add) -> int:
        """Rewrite the operands of a chain of sums; return their number."""
        count = 1
        if type(node.left) is nodes.Add:
            count += self._sum(node.left)
            if count > _LEAVES:
                node.left, count = _checked(node.left, "sized value"), 1
        else:
            node.left = self.visit(node.left)
        node.right = self.visit(node.right)
        return count

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = [each if _is_text(each) else _checked(each, "shown value") for each in node.nodes]
        whole: list[nodes.Expr] = []
        for part in parts:
            if len(whole) == _LEAVES:
                whole = [_checked(nodes.Concat(whole), "sized value")]
            whole.append(part)
        node.nodes = whole
        return _checked(node, "sized value")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _checked(node, "sliced value") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._literal(node) if node.ctx == "load" else self.generic_visit(node)

    def _literal(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        if all(isinstance(part, nodes.Const) for part in node.find_all(nodes.Expr)):
            return node
        self.generic_visit(node)
        return _checked(node, "own value")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        searched = any(each.op in ("in", "notin") for each in node.ops)
        sides = [node.expr, *(each.expr for each in node.ops)]
        if not searched and any(isinstance(side, nodes.Const) for side in sides):
            return node
        for each in node.ops:
            if not _is_constant(each.expr):
                each.expr = _checked(each.expr, "scanned value")
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        # with a filter for its text (None: the text itself) as any other
        node.filter = nodes.Filter(node.filter, "sized value", [], [], None, None)  # pyright: ignore
        return node


def _checked(node: Any, check: str) -> nodes.Filter:
    return nodes.Filter(node, check, [], [], None, None, lineno=node.lineno)


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)


def _is_text(node: nodes.Node) -> bool:
    """Return whether an expression is a text, or raises an error."""
    match node:
        case nodes.TemplateData():
            return True
        case nodes.Const(value=value):
            return not isinstance(value, tuple | list | dict)
        case nodes.Filter(node=nodes.Expr() as inner, name="sized value"):
            return _is_text(inner)
        case nodes.Filter(name=name):
            return name in costs.TEXTS
        case nodes.Concat():
            return True
        case nodes.Add(left=left, right=right):
            return _is_text(left) or _is_text(right)
        case nodes.CondExpr(expr1=one, expr2=other):
            return _is_text(one) and (other is None or _is_text(other))
    return False
