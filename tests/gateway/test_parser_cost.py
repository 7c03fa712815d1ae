"""Work is linear in the text, whatever the text and however it comes.

Characters are counted, not seconds: the modules of the parsers are read once more with each of
their string operations replaced by one that adds up the characters it reads or writes.
"""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import arl_parsers
import pytest

from agentgym_rl import gateway
from agentgym_rl.core import entry_points_of
from agentgym_rl.gateway import call_formats, parsers
from tests.kit.cases import cases

SPEC = {
    "start_anchor": "A",
    "fields": {
        "reasoning": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"function": "{content}"},
        },
        "content": {},
    },
}
FAMILIES = [*call_formats(), "think", "think-text", "think-granite", "response_template"]
HOSTILE = {
    "words": "so it goes ",
    "spaces": " ",
    "angles": "<",
    "half_tags": "</tool_call",
    "open": "<tool_call>",
    "close": "</tool_call>",
    "quotes": '<tool_call>"',
    "escapes": '<tool_call>"</tool_call>\\"',
    "broken": '<tool_call>"</tool_call>\n',
    "values": "<tool_call><parameter=x></tool_call>",
    "unended": "<tool_call>{",
    "functions": "<function=f></function> ",
    "objects": '{"name":"f","parameters":{}};',
    "brackets": '{"a":[',
    "tags": "<|python_tag|>{",
    "thoughts": "<think></think>",
    "arrays": "[TOOL_CALLS][{",
    "names": "[TOOL_CALLS]f[ARGS",
    "named": '[TOOL_CALLS]f[ARGS]{"a":"',
    "sections": "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
    "parts": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{<｜tool▁call▁end｜> ",
    "numbered": "<|tool_call_begin|>f:1:1<|tool_call_end|>",
    "keys": "<tool_call>f<arg_key>a</arg_key> </tool_call>",
    "filled": "<tool_call>f<arg_key>a</arg_key><arg_value></tool_call>",
    "invoked": '<minimax:tool_call><invoke name="f"><parameter name="',
    "literals": "<start_function_call>call:f{a:{b:[<escape>",
    "bare": "<start_function_call>call:f{a<end_function_call>",
    "python": "[f(a={'b': [(",
    "lists": "[f(a=1)] ",
    "strings": """[f(a="\\'""",
    "channels": "<|channel|>analysis<|message|>a<|end|><|start|>assistant",
    "headers": "<|channel|>a to=",
    "recipients": "<|channel|>commentary to=f<|message|>{<|call|>",
    "granite": "Here is my thought process: Here",
}
COUNTED = "counted_parsers"
PACKAGES = {parsers: COUNTED, arl_parsers: f"{COUNTED}_of_families"}
"""The packages of parsers, each with the name under which it is read once more."""


def second(module: str) -> str:
    """The name under which a module is read once more; its own, if it is not one of parsers."""
    for package, name in PACKAGES.items():
        if f"{module}.".startswith(f"{package.__name__}."):
            return name + module.removeprefix(package.__name__)
    return module


class Counter:
    """The number of operations on strings, and of the characters they read or write."""

    def __init__(self) -> None:
        self.count = 0

    def call(self, on: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Do `on.name(*args)`."""
        result = getattr(on, name)(*args, **kwargs)
        self.count += 1 + self._read(on, name, args, result)
        return result

    def _read(self, on: Any, name: str, args: Sequence[Any], result: Any) -> int:
        if isinstance(on, re.Pattern):
            start = args[1] if name in ("search", "match") and len(args) > 1 else 0
            found = result if isinstance(result, re.Match) else None
            text = args[-1] if name == "sub" else args[0]
            return (found.end() if found else len(text)) - start
        if isinstance(on, str):
            if name in ("find", "index", "rfind"):
                start = args[1] if len(args) > 1 else 0
                met = name != "rfind" and result >= 0
                return (result + len(args[0]) if met else len(on)) - start
            if name in ("startswith", "endswith"):
                return len(args[0])
            return len(result if name == "join" else on)
        if type(on).__module__.startswith(COUNTED):
            return 0  # it counts what it does
        return sum(len(arg) for arg in args if isinstance(arg, str))

    def item(self, of: Any, key: Any) -> Any:
        """Do `of[key]`."""
        result = of[key]
        self.count += 1 + (len(result) if isinstance(of, str) else 0)
        return result

    def add(self, one: Any, other: Any) -> Any:
        """Do `one + other`."""
        result = one + other
        self.count += 1 + (len(result) if isinstance(result, str) else 0)
        return result

    def within(self, one: Any, other: Any) -> bool:
        """Do `one in other`."""
        found = one in other
        if isinstance(other, str):
            self.count += 1 + (other.index(one) if found else len(other))
        return found


class Counting(ast.NodeTransformer):
    """A rewriting of a module that leaves its string operations to a `Counter` named COUNTER."""

    def _by(
        self, name: str, *args: ast.expr, keywords: list[ast.keyword] | None = None
    ) -> ast.Call:
        counter = ast.Attribute(ast.Name("COUNTER", ast.Load()), name, ast.Load())
        return ast.Call(counter, list(args), keywords or [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        name = ast.Constant(node.func.attr)
        return self._by("call", node.func.value, name, *node.args, keywords=node.keywords)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        key = node.slice
        if isinstance(key, ast.Slice):
            ends = (end or ast.Constant(None) for end in (key.lower, key.upper, key.step))
            key = ast.Call(ast.Name("slice", ast.Load()), list(ends), [])
        return self._by("item", node.value, key)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        is_add = isinstance(node.op, ast.Add)
        return self._by("add", node.left, node.right) if is_add else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.op, ast.Add):
            return self.generic_visit(node)
        now = ast.parse(ast.unparse(node.target), mode="eval").body
        return ast.Assign([node.target], self._by("add", now, self.visit(node.value)))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        is_in = len(node.ops) == 1 and isinstance(node.ops[0], ast.In)
        return self._by("within", node.left, node.comparators[0]) if is_in else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        if node.module != gateway.__name__:
            return node
        homes = {
            alias.name: getattr(getattr(gateway, alias.name), "__module__", "")
            for alias in node.names
        }
        moved = {name: second(home) for name, home in homes.items() if second(home) != home}
        return [
            ast.ImportFrom(moved.get(name, node.module), [ast.alias(name)], 0) for name in homes
        ]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node


def counting(source: str | bytes) -> ast.Module:
    return ast.fix_missing_locations(Counting().visit(ast.parse(source)))


class Loader(SourceFileLoader):
    def __init__(self, name: str, path: Path, counter: Counter) -> None:
        super().__init__(name, str(path))
        self._counter = counter

    def get_code(self, fullname: str) -> Any:
        return compile(counting(self.get_data(self.path)), self.path, "exec")

    def exec_module(self, module: Any) -> None:
        module.COUNTER = self._counter
        super().exec_module(module)


class Finder:
    """Finds the modules of the parsers a second time, as a package named COUNTED."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        folder = next((one for one, as_name in PACKAGES.items() if as_name == package), None)
        if folder is None:
            return None
        file = Path(str(folder.__file__)).with_name(f"{module or '__init__'}.py")
        loader = Loader(name, file, self._counter)
        where = None if module else [str(file.parent)]
        return spec_from_file_location(name, file, loader=loader, submodule_search_locations=where)


@pytest.fixture(scope="module")
def counted():
    """The function that returns the counting module of a module of parsers, and its counter."""
    counter = Counter()
    finder = Finder(counter)
    sys.meta_path.insert(0, finder)
    try:
        yield lambda module: importlib.import_module(second(module)), counter
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(COUNTED)]:
            del sys.modules[name]


def made(family: str, load: Callable[[str], Any] = importlib.import_module) -> Any:
    def member(group: str, name: str) -> Any:
        point = entry_points_of(group)[name]
        return getattr(load(point.module), point.attr)

    if family == "response_template":
        templates = load("arl_parsers.response_template")
        return templates.ResponseTemplateParser(templates.ResponseTemplate(SPEC), [], "A")
    think, text = load("agentgym_rl.gateway.parsers.think"), load("agentgym_rl.gateway.parsers")
    return {
        "think": lambda: think.ThinkParser(member("parsers", "hermes")([]), opened=True),
        "think-text": lambda: think.ThinkParser(text.TextParser(), opened=False),
        "think-granite": lambda: think.ThinkParser(
            member("parsers", "granite")([]), opened=False, thoughts=member("thoughts", "granite")
        ),
    }.get(family, lambda: member("parsers", family)([]))()


def read(parser: Any, text: str, *, by_character: bool) -> None:
    for piece in text if by_character else [text]:
        parser.feed(piece)
    parser.finish()


def work(
    counted: tuple[Callable[[str], Any], Counter], family: str, text: str, *, by_character: bool
) -> int:
    load, counter = counted
    parser, counter.count = made(family, load), 0
    read(parser, text, by_character=by_character)
    return counter.count


@cases("family", FAMILIES)
@cases("text", HOSTILE)
def test_ten_times_the_text_is_about_ten_times_the_work(counted, family, text):
    short, long = ((HOSTILE[text] * size)[:size] + "x" for size in (1_000, 10_000))
    first = work(counted, family, short, by_character=False)
    second = work(counted, family, long, by_character=False)
    assert first < second < 12 * first  # 100 times, were it quadratic


@cases("family", FAMILIES)
@cases("text", ["words", "spaces", "half_tags", "quotes", "unended", "values"])
@pytest.mark.slow
def test_so_it_is_in_single_characters(counted, family, text):
    short, long = ((HOSTILE[text] * size)[:size] for size in (300, 3_000))
    first = work(counted, family, short, by_character=True)
    second = work(counted, family, long, by_character=True)
    assert first < second < 12 * first


REREADING = """
class Rereading:
    def __init__(self):
        self.text = ""

    def feed(self, text):
        self.text += text

    def finish(self):
        pass
"""


@cases(
    "reading",
    ["", "; self.text.find('#')", "; PATTERN.search(self.text)", "; '#' in self.text"],
)
def test_reading_all_again_at_each_piece_is_found(reading):
    def work_of(size: int) -> int:
        names: dict[str, Any] = {"COUNTER": Counter(), "PATTERN": re.compile("#")}
        exec(
            compile(counting(REREADING.replace("+= text", f"+= text{reading}")), "", "exec"), names
        )
        read(names["Rereading"](), "a" * size, by_character=True)
        return names["COUNTER"].count

    assert work_of(2000) > 50 * work_of(200)


@pytest.mark.slow
@pytest.mark.timeout(200)
@cases("family", FAMILIES)
@cases("text", HOSTILE)
def test_no_pattern_takes_for_ever_over_a_long_text(family, text):
    """Counting does not see what a pattern does inside; some seconds are enough for all."""
    read(made(family), (HOSTILE[text] * 200_000)[:200_000] + "x", by_character=False)
