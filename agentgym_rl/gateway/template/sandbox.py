"""The sandbox in which chat templates run: jinja2 as transformers sets it up, with every rendering
bounded in time and memory (`steps`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from types import BuiltinFunctionType, MethodType
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg as PassArg  # pyright: ignore[reportPrivateUsage]

from . import costs
from .steps import (
    CHECKS,
    MAX_DIGITS,
    SHORT,
    Checks,
    TemplateNamespace,
    check_length,
    counting,
    endless,
    joined,
    kept,
    made,
    own,
    pay,
    scanned,
    sized,
    spend,
)

_MAX_FORMAT = 1_000
"""The maximum length of a date's format."""
_MACRO = 5
"""The steps of one call of a macro."""


class _Generation(Extension):
    """The `{% generation %}…{% endgeneration %}` block around model text; it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Dict:
    """The function `dict` of templates."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Environment(ImmutableSandboxedEnvironment):
    """A sandbox with faster access to keys of plain dicts, to templates' own macros and to methods
    of texts, which is safe. Its renderings end, and stay small (`Steps`).

    `now`: the date and time for templates; None: that of each rendering.
    """

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(joined)

    def __init__(self, now: datetime | None) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters["tojson"] = _tojson
        for name, function in self.filters.items():
            if name not in costs.FREE:
                self.filters[name] = _paid(name, function)
        self.filters.update(CHECKS)
        for name, test in self.tests.items():
            if name not in costs.FREE_TESTS:
                self.tests[name] = _weighed(test)
        del self.globals["lipsum"]  # random, as is the filter: no prompt could be made again
        del self.filters["random"]
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = TemplateNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = dates_of(now)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Checks().visit(source), *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str | bytes):
            pay(context, costs.of_percent(left, right, made(context)))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            digits = bits * right if operator == "**" else bits + right.bit_length()
            if digits > MAX_DIGITS and operator != "%":
                raise endless(f"a number of more than {MAX_DIGITS:,} binary digits")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(many, str | bytes | list | tuple):
                    size = len(cast(Sequence[Any], many)) * times
                    check_length(size)
                    pay(context, size * (costs.PER_ITEM if isinstance(many, list | tuple) else 1))
        return sized(context, super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICTS:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in costs.FREE_METHODS:
                return getattr(obj, attribute)
        elif kind is TemplateNamespace or kind is LoopContext:
            if not attribute.startswith("_"):
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str and attribute in costs.TEXT_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
        if type(__obj) is Macro:
            spend(__context, _MACRO)
            return sized(__context, __obj(__context.eval_ctx, *args, **kwargs))
        spend(__context, 1)
        if type(__obj) is MethodType and isinstance(__obj.__self__, Extension):
            return sized(__context, __obj(*args, **kwargs))
        is_made = made(__context)
        if type(__obj) is not BuiltinFunctionType:
            if args or kwargs:
                pay(__context, costs.of_function(__obj, args, kwargs, is_made))
            result = super().call(__context, __obj, *args, **kwargs)
            return sized(__context, result) if type(result) is not dict else own(__context, result)
        name = __obj.__name__
        if name in costs.FREE_METHODS:
            return __obj(*args, **kwargs)
        args = tuple(_listed(__context, one) for one in args)
        pay(__context, costs.of_method(__obj, args, kwargs, is_made))
        return kept(__context, __obj(*args, **kwargs))


_OF_DICTS = frozenset(dir(dict))


def _listed(context: Context, value: Any) -> Any:
    """Return an argument; an iterator as a list, with its items counted."""
    return list(counting(context, value)) if hasattr(type(value), "__next__") else value


def _weighed(test: Callable[..., bool]) -> Callable[..., bool]:
    """Return a test whose cost is counted by the size of what it reads."""

    @pass_context
    def weighed(context: Context, *args: Any) -> bool:
        return test(*(scanned(context, each) for each in args))

    return weighed


def _paid(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose cost is counted before it runs."""
    cost = costs.FILTERS.get(name, costs.worst)
    kind = PassArg.from_obj(function)
    is_lazy, repeats = name in costs.LAZY, name in costs.REPEATING
    is_plain = name in costs.PLAIN

    @pass_context
    def paid(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        if is_plain and type(value) is str and not args and not kwargs and len(value) <= SHORT:
            return function(value)
        spend(context, 1)
        if hasattr(type(value), "__next__"):
            value = counting(context, value)
            value = value if is_lazy else list(value)
        pay(context, cost((value, *args), kwargs, made(context)))
        if kind is PassArg.context:
            found = function(context, value, *args, **kwargs)
        elif kind is PassArg.eval_context:
            found = function(context.eval_ctx, value, *args, **kwargs)
        elif kind is PassArg.environment:
            found = function(context.environment, value, *args, **kwargs)
        else:
            found = function(value, *args, **kwargs)
        return own(context, found) if repeats else kept(context, found)

    return paid


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # unlike jinja2's own filter, this one does not escape HTML
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def dates_of(now: datetime | None) -> Callable[[str], str]:
    """Return the function `strftime_now` of templates for this moment; None: the moment of the
    call."""

    def strftime_now(format: str) -> str:
        if len(format) > _MAX_FORMAT:
            raise TemplateError(f"a date's format has more than {_MAX_FORMAT} characters")
        return (now or datetime.now()).strftime(format)

    return strftime_now
