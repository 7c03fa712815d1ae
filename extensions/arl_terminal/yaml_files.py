"""Configuration files in YAML, read like the same tables in TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from agentgym_rl.core import is_dict, is_list


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Return a whole number, which leading zeros do not make octal."""
    return int(node.value, 16 if "x" in node.value else 10)


class _Loader(yaml.SafeLoader):
    """A loader of YAML 1.2: `on` and `no` are texts, 1e-4 is a number, dates are texts, and a key
    that a table has twice is an error."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - PyYAML fills and reads it by class

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.value != "<<"]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"line {node.start_mark.line + 1}: the table has {twice!r} twice")
        return super().construct_mapping(node, deep=deep)


for _tag, _form, _first in (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_form})$"), [*_first, ""]
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _number)


def parse(text: str) -> dict[str, Any]:
    """Return the tables of a YAML text; a key without a value is left out.

    Raises:
        ValueError: it is not YAML, or not a table of named keys.
    """
    try:
        found = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    if not is_dict(found):
        raise ValueError(f"expected keys with values, got {type(found).__name__}: {found!r:.60}")
    return _tables(found)


def _tables(found: Mapping[Any, Any]) -> dict[str, Any]:
    for key in found:
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} is no text: put it in quotes")
    return {key: _plain(value) for key, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if is_dict(value):
        return _tables(value)
    return [_plain(it) for it in value] if is_list(value) else value
