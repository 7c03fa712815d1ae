"""The page with every key of the configuration: a heading, and so an anchor, for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from arl_start.configuration import literal

from agentgym_rl.cli import allowed_values
from agentgym_rl.config import Config, fields_of, section_types, type_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_HEAD = """---
search: {boost: 4}
---
# Configuration: every key

Each key is a flag of `arl train`, `--section.key=value`, and a line of a file for `--config FILE`;
the flag wins. `arl config` prints this page as such a file, `arl config algo.kl` one section of it,
and `arl train --help algo.loss` explains one key.

<style>.md-sidebar--secondary .md-nav__item .md-nav { display: none }</style>
"""


def configuration() -> str:
    """Return the page."""
    config = Config()
    keys = [name for name, field in fields_of(Config).items() if not section_types(field)]
    sections = [(name, field) for name, field in fields_of(Config).items() if section_types(field)]
    lines = [_HEAD, "## Keys without a section { #keys }"]
    for name in keys:
        lines += _key(name, fields_of(Config)[name], config, ())
    for name, field in sections:
        lines += _section(name, field)
    return "\n".join(lines) + "\n"


def _section(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield the lines of a section, its keys, and the sections in it."""
    kinds = section_types(field)
    yield from ("", f"## {name} {{ #{name} }}", "", _describe(kinds))
    inner: dict[str, FieldInfo] = {}
    for key, owners in _owners(kinds).items():
        found = fields_of(owners[0])[key]
        if section_types(found):
            inner[key] = found
            continue
        types = () if len(owners) == len(kinds) else tuple(map(type_of, owners))
        yield from _key(f"{name}.{key}", found, owners[0](), types)
    for key, found in inner.items():
        yield from _section(f"{name}.{key}", found)


def _owners(kinds: Sequence[type[BaseModel]]) -> dict[str, list[type[BaseModel]]]:
    """Return the types of a section that have each key."""
    owners: dict[str, list[type[BaseModel]]] = {}
    for kind in kinds:
        for key in fields_of(kind):
            owners.setdefault(key, []).append(kind)
    return owners


def _about(kind: type[BaseModel]) -> str:
    text = re.sub(r"^The section `[\w.]+`: ", "", " ".join((kind.__doc__ or "").split()))
    return _safe(text[:1].upper() + text[1:])


def _describe(kinds: Sequence[type[BaseModel]]) -> str:
    """Return the text about a section; of one with several types, a line for each."""
    if len(kinds) == 1:
        return _about(kinds[0])
    lines = [f"- `{type_of(kind)}`: {_about(kind)}" for kind in kinds]
    return "\n".join(["Each `type` has keys of its own:", "", *lines])


def _key(name: str, field: FieldInfo, owner: BaseModel, types: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a key."""
    key = name.rpartition(".")[2]
    value = getattr(owner, key, None)
    default = "unset" if value is None else f"`{literal(value)}`"
    about = re.sub(r"\bNone\b", "unset", " ".join((field.description or "").split()))
    about = about or "The type of the section, which decides what other keys it has."
    yield from ("", f"### `{name}` {{ #{name} }}", "", _safe(about), "", f"Default: {default}.")
    if key != "type" and (allowed := allowed_values(field)):
        yield f"Allowed: {_safe(allowed)}."
    if types:
        yield f"Types: {', '.join(f'`{each}`' for each in types)}."


def _safe(text: str) -> str:
    """Return a text in which no character outside of code is a mark of HTML."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)
