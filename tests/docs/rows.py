"""The rows of the tables of docs/coming-from/, and the kinds of names that are ours."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from arl_serve import app
from pydantic import BaseModel

from agentgym_rl.cli import load_configuration
from agentgym_rl.cli.parse import make_parser, parse
from agentgym_rl.config import Config, load_config, preset_names, section_types
from agentgym_rl.core import ConfigError
from agentgym_rl.gym import EnvSpec
from agentgym_rl.gym.registry import names
from tests.docs.blocks import FENCE, ROOT
from tests.docs.test_blocks import keys

KEYS = keys()
SECTIONS = {key.rpartition(".")[0] for key in KEYS} - {""}
TABLES = {section.partition(".")[0] for section in SECTIONS}
PLACEHOLDERS = {"FOLDER": "bundled", "x.toml": str(ROOT / "examples" / "math.toml")}
NEEDED: dict[str, dict[str, Any]] = {
    "algo.whiten": {"algo.whiten.over": "tokens"},
    "algo.kl": {"algo.kl.coef": 0.1, "algo.kl.reference": "initial"},
    "algo.reward.overlong_limit": {"algo.reward.overlong_penalty": 1.0},
    "algo.reward.overlong_buffer": {"algo.reward.overlong_penalty": 1.0},
    "algo.reward.overlong_capped": {"algo.reward.overlong_penalty": 1.0},
    "algo.behavior_correction.reduce": {"algo.behavior_correction.type": "sequence_mask"},
    "weights.transport": {"engine.type": "vllm"},
    "algo.baseline": {"algo.scale": "none"},
}
"""The values without which a key, or the keys of a section, are refused."""
HOMES = (
    *("agentgym_rl", "agentgym_rl.gym.wrappers", "agentgym_rl.gym.env", "arl_envs.mcp"),
    "agentgym_rl.core.trajectory",
)
"""The modules whose names the pages write without their module."""
DATA = {
    "prompt": "envs/arl_envs/reward/options.py",
    "reward": "envs/arl_envs/reward/scoring.py",
    "reward_components": "agentgym_rl/gym/env.py",
}
"""The keys of tables that our code reads, with the file that does."""


@dataclass(frozen=True)
class Line:
    """One row of a table."""

    page: str
    theirs: str
    here: str
    more: str
    compared: tuple[str, ...] = ()
    """The beginnings of names in docs/data/peers.txt."""

    def __str__(self) -> str:
        return f"{self.page}: {self.theirs}"

    @property
    def in_here(self) -> list[str]:
        """Return the names of the second column; with "the same", those of the first too."""
        same = _named(self.theirs) if self.here.startswith("the same") else []
        return same + _ours(self.here)

    @property
    def ours(self) -> list[str]:
        """Return the names of the row that are ours, in their order."""
        return self.in_here + _ours(self.more)

    @property
    def says_none(self) -> bool:
        """Return whether the row says that there is no equivalent."""
        return self.here.startswith("no equivalent")


def lines() -> list[Line]:
    """Return the rows of all tables of the pages, without their heads."""
    found: list[Line] = []
    for file in sorted((ROOT / "docs" / "coming-from").glob("*.md")):
        texts = FENCE.sub("", file.read_text()).splitlines()
        rows = [text for text in texts if text.startswith("|")]
        found += [read(file.stem, text) for text in rows[2:]]
    return found


def prose() -> list[Line]:
    """Return the paragraphs of the pages as rows: their flags and their keys are ours."""
    found: list[Line] = []
    for file in sorted((ROOT / "docs" / "coming-from").glob("*.md")):
        texts = FENCE.sub("", file.read_text()).splitlines()
        for text in (text for text in texts if not text.startswith("|")):
            said = [n for n in _named(text) if n.startswith("--") or n.partition(".")[0] in TABLES]
            found.append(Line(file.stem, "prose", " ".join(f"`{name}`" for name in said), ""))
    return found


def read(page: str, text: str) -> Line:
    """Return the row of a line of Markdown."""
    compared = re.findall(r"<!-- compared: (.+?) -->", text)
    text = re.sub(r"<!--.*?-->", "", text)
    cells = re.split(r"(?<!\\)\|", text)[1:-1]
    theirs, here, more = (cell.strip().replace(r"\|", "|") for cell in cells)
    named = tuple(name.strip() for one in compared for name in one.split(";"))
    return Line(page, theirs, here, more, named)


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _ours(cell: str) -> list[str]:
    chain = r"`[^`]+`(?:(?:, | and )`[^`]+`)* (?:is|are|has) `"
    theirs = {name for said in re.findall(chain, cell) for name in _named(said)}
    return [name for name in _named(cell) if name not in theirs]


@cache
def meant(line: Line) -> dict[str, list[str]]:
    """Return for each key or section that a row names the keys it may mean: itself, or a key of
    what the row named before, the last first."""
    found: dict[str, list[str]] = {}
    places: list[str] = []
    for name in line.ours:
        key = name.lstrip("-").partition("=")[0].strip("[] ")
        full = [key] if key in KEYS | SECTIONS else [f"{place}.{key}" for place in places]
        full = [each for each in full if each in KEYS | SECTIONS]
        if full:
            found[name] = full
            parts = full[0].split(".")
            above = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
            places = list(dict.fromkeys([*above, *places]))
    return found


# The kinds of names that are ours: each function returns whether a name of a row is of its kind.


@cache
def flags_of(command: str) -> set[str]:
    """Return the flags of a command, --help among them; none, if there is no such command."""
    _, parsers = make_parser((command,))
    return set(parsers[command]._option_string_actions) if command in parsers else set()


def is_command(name: str, line: Line) -> bool:
    """A command with flags that it has, and with a configuration if it is that of a run."""
    if not name.startswith("arl "):
        return False
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(name)[1:]]
    if words[0] == "train":
        return loads_flags(words[1:])
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    return flags | {"--help"} <= flags_of(words[0])


def is_flag(name: str, line: Line) -> bool:
    """`--flag`, `--flag value`, `--section.key=value`; or another value of a flag of the row."""
    if not name.startswith("--"):
        flags = [other.split()[0] for other in line.ours if re.match(r"--\S+ ", other)]
        return any(loads_flags([flag, name]) for flag in flags)
    if name in flags_of("train") or name[2:] in KEYS:
        return True
    of_env = re.fullmatch(r"--env\.options\.(\w+)", name)
    return of_env[1] in EnvSpec.model_fields if of_env else loads_flags(shlex.split(name))


def loads_flags(words: list[str]) -> bool:
    """Return whether `arl train` takes the flags, and there are such environments and so on."""
    try:
        args = parse(["train", *words])
        load_configuration(args)
    except ConfigError:
        return False
    kinds = ("env", "agent", "sandbox")
    return all((getattr(args, kind) or "").partition(":")[0] in registered(kind) for kind in kinds)


@cache
def registered(kind: Any) -> set[str]:
    """Return the short names of a kind of plugins, and the empty one."""
    return {"", *(name.removesuffix("-v0") for name in names(kind))}


def is_key(name: str, line: Line) -> bool:
    """A key or a section, alone."""
    return name in meant(line) and re.fullmatch(r"[a-z_.]+|\[[a-z.]+\]", name) is not None


def is_assignment(name: str, line: Line) -> bool:
    """`key = value`: the configuration takes it, and has it."""
    mine = assigned(name, line)
    return all(at(loaded(mine), key) == value for key, value in mine.items()) and bool(mine)


def assigned(name: str, line: Line) -> dict[str, Any]:
    """Return the key and the value of `key = value`; nothing for another name."""
    if name not in meant(line) or " = " not in name:
        return {}
    value = name.partition(" = ")[2]
    return {meant(line)[name][0]: tomllib.loads(f"x = {value}")["x"]}


def loaded(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with these values and those that they need; empty if refused."""
    needed: dict[str, Any] = {}
    for key in mine:
        for start, values in NEEDED.items():
            needed |= values if f"{key}.".startswith(f"{start}.") else {}
    for overrides in (mine, needed | dict(mine)):
        try:
            return load_config(None, overrides).model_dump(mode="json")
        except ConfigError:
            continue
    return {}


def at(values: Any, key: str) -> Any:
    """Return the value of a dotted key; None where there is none."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def is_value(name: str, line: Line) -> bool:
    """A value of a key that the row names."""
    return any(takes(key, name.strip('"')) for keys in meant(line).values() for key in keys)


@cache
def takes(key: str, value: str) -> bool:
    """Return whether a key takes a value; of a key that takes any text, whether the example that
    explains all keys names it."""
    key += ".type" if f"{key}.type" in KEYS else ""
    if loaded({key: "no such value"}) or loaded({key: ["no such value"]}):
        last = key.rpartition(".")[2]
        text = (ROOT / "examples" / "math.toml").read_text()
        said = re.findall(rf"^(?:# )?{last} = .*$", text, re.MULTILINE)
        return any(re.search(rf"\b{re.escape(value)}\b", line) for line in said)
    return bool(loaded({key: value}) or loaded({key: [value]}))


def is_python(name: str, line: Line) -> bool:
    """A name that can be imported, its attribute, or a call that is taken; or `module:Class`."""
    inside = re.search(r"[\"']([\w.]+):(\w+)[\"']", name)
    if inside and "(" not in name:
        return python(f"{inside[1]}.{inside[2]}") is not None
    text = re.sub(r"^\w+(, \w+)* = ", "", name).removeprefix("await ").removeprefix("@")
    try:
        node = ast.parse(text.replace(", …", ""), mode="eval").body
    except SyntaxError:
        return False
    call = node if isinstance(node, ast.Call) else None
    found = python(ast.unparse(call.func if call else node))
    if found is None or call is None:
        return found is not None
    return {a.id for a in call.args if isinstance(a, ast.Name)} | {
        k.arg for k in call.keywords if k.arg
    } <= inspect.signature(found).parameters.keys()


def python(path: str) -> Any:
    """Return what a dotted name means; None if nothing. `env` is an environment."""
    path = re.sub(r"^env\.", "Env.", path)
    for home in HOMES:
        found: Any = importlib.import_module(home)
        try:
            for attribute in path.removeprefix(f"{home}.").split("."):
                found = _attribute(found, attribute)
        except (AttributeError, ImportError):
            continue
        return found
    return None


def _attribute(of: Any, name: str) -> Any:
    """Return an attribute, a field, or a module of a package."""
    if inspect.isclass(of) and name in inspect.get_annotations(of):
        return inspect.get_annotations(of)[name]
    if inspect.ismodule(of) and not hasattr(of, name):
        return importlib.import_module(f"{of.__name__}.{name}")
    return getattr(of, name)


def is_member(name: str, line: Line) -> bool:
    """An attribute of a class that the row names, or an argument of a call in it."""
    said = line.ours
    classes = [found for other in said if inspect.isclass(found := python(other))]
    arguments = {word for call in said for word in re.findall(r"\w+(?=[,)])", call)}
    return name in arguments or any(_has(cls, name.partition("(")[0]) for cls in classes)


def _has(of: type, name: str) -> bool:
    try:
        _attribute(of, name)
    except AttributeError:
        return False
    return True


def is_metric(name: str, line: Line) -> bool:
    """A metric, or another one under the same heading as one that the row names."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    heads = {other.rpartition("/")[0] for other in line.ours if "/" in other}
    named = [name] if "/" in name else [f"{head}/{name}" for head in heads]
    return any(f"`{full}`" in page for full in named)


def is_file(name: str, line: Line) -> bool:
    """A file of the repository, or one that runs have."""
    if not re.fullmatch(r"[\w/.-]+\.(py|jsonl|db|md|toml)", name):
        return False
    sources = (ROOT / "agentgym_rl" / "storage").glob("*.py")
    return (ROOT / name).exists() or any(f'"{name}"' in file.read_text() for file in sources)


def is_route(name: str, line: Line) -> bool:
    """A route of `arl serve`."""
    written = name.replace("ID", "{session_id}")
    return f'"{written}"' in inspect.getsource(app)


def is_entry_point(name: str, line: Line) -> bool:
    """A group of entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return name in project["entry-points"]


def is_data(name: str, line: Line) -> bool:
    """A key of a table that our code reads."""
    return name in DATA and f'"{name}"' in (ROOT / DATA[name]).read_text()


KINDS = (
    is_data, is_command, is_flag, is_key, is_assignment, is_value, is_python, is_member, is_metric,
    is_file, is_route, is_entry_point,
)  # fmt: skip


def kind_of(name: str, line: Line) -> str:
    """Return the kind of a name of ours; "" if it is none."""
    return next((kind.__name__ for kind in KINDS if kind(name, line)), "")


# What another system alone has.


def doubtful(text: str) -> list[str]:
    """Return the parts of a list that we have: names that a key takes as a value, and terms of
    which the glossary says what they are called here."""
    names_in = {word.lower() for word in re.findall(r"\b[A-Z]\w+", text)}
    return sorted(names_in & choices()) + [term for term in elsewhere() if term in text.lower()]


def choices(model: type[BaseModel] = Config) -> set[str]:
    """Return all texts that keys choose from."""
    found = set(preset_names())
    for field in model.model_fields.values():
        for kind in section_types(field):
            found |= choices(kind)
        found |= set(_texts(field.annotation))
    return found


def _texts(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str) and get_origin(kind) is Literal:
            yield part
        yield from _texts(part)


def elsewhere() -> list[str]:
    """Return the terms of two words or more that other systems use for something of ours."""
    page = (ROOT / "docs" / "glossary.md").read_text()
    cells = [row.strip("|").split("|")[-1] for row in page.splitlines() if row.startswith("| ")]
    terms = {re.sub(r"\(.*?\)", "", term).strip() for cell in cells for term in cell.split(",")}
    return sorted(term for term in terms if re.fullmatch(r"[a-z]+( [a-z]+)+", term))
