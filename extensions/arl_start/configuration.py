"""A configuration as a TOML file in which comments describe every key."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentgym_rl.config import Config, fields_of, section_types, type_of, unset_keys
from agentgym_rl.core import ConfigError, is_dict, is_list

from .pages import unknown

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_Kinds = Sequence["type[BaseModel]"]
_WIDTH = 96
_BARE = re.compile(r"[\w-]+")


def as_toml(config: Config, name: str = "") -> str:
    """Return the configuration, or the section or key `name` of it, as TOML with comments.

    A key is in a comment, `# key = value`, if it is unset, or if a run would still fit it to its
    model.

    Raises:
        ConfigError: there is no such section or key.
    """
    above, owner, key, kinds = _reached(config, name) if name else ("", config, "", ())
    writer = _Writer(set(unset_keys(config)))
    if key:
        lines = list(writer.key(f"{above}.{key}".lstrip("."), fields_of(type(owner))[key], owner))
        return "\n".join([*([f"[{above}]"] if above else []), *lines]) + "\n"
    return "\n".join(writer.section(above, owner, kinds)).strip() + "\n"


def values_of(config: Config, name: str = "") -> Any:
    """Return the values of the configuration, or of the section or key `name`, for JSON.

    Raises:
        ConfigError: there is no such section or key.
    """
    _, owner, key, _ = _reached(config, name) if name else ("", config, "", ())
    values = owner.model_dump(mode="json")
    return values[key] if key else values


def _reached(config: BaseModel, name: str) -> tuple[str, BaseModel, str, _Kinds]:
    """Return the dotted name of a section, the section, the key in it ("": the section itself), and
    the types that the section may have."""
    owner, above, kinds = config, "", ()
    parts = name.split(".")
    for number, part in enumerate(parts):
        fields = fields_of(type(owner))
        if part not in fields:
            known = [f"{above}.{key}".lstrip(".") for key in fields]
            raise unknown(f"no section or key {name!r}", name, known)
        if not section_types(fields[part]):
            if parts[number + 1 :]:
                raise ConfigError(f"no section or key {name!r}: {above}.{part} is a value")
            return above, owner, part, ()
        above, kinds = f"{above}.{part}".lstrip("."), section_types(fields[part])
        owner = _inner(owner, part, fields[part])
    return above, owner, "", kinds


def _inner(owner: BaseModel, key: str, field: FieldInfo) -> BaseModel:
    """Return a section of a section; with its defaults if a run does not have it."""
    found = getattr(owner, key, None)
    return section_types(field)[0]() if found is None else found


class _Writer:
    """The writer of the lines of sections and keys."""

    def __init__(self, fitted: Collection[str]) -> None:
        self._fitted = fitted
        """The dotted names of keys that are still to be fitted to the model."""

    def section(self, name: str, section: BaseModel, kinds: _Kinds) -> Iterator[str]:
        """Yield the lines of a section, and of the sections in it; `kinds` are the types that it
        may have."""
        fields = fields_of(type(section))
        inner = {key: field for key, field in fields.items() if section_types(field)}
        if name:
            yield from ("", *_about(section, kinds), f"[{name}]")
        for key, field in fields.items():
            if key not in inner:
                yield from self.key(f"{name}.{key}".lstrip("."), field, section)
        for key, field in inner.items():
            place = f"{name}.{key}".lstrip(".")
            its = _inner(section, key, field)
            lines = self.section(place, its, section_types(field))
            is_there = getattr(section, key, None) is not None
            yield from (lines if is_there else map(_commented, lines))

    def key(self, name: str, field: FieldInfo, owner: BaseModel) -> Iterator[str]:
        """Yield the lines of a key: its description, the values it takes, and its value."""
        from agentgym_rl.cli import allowed_values

        key = name.rpartition(".")[2]
        value = getattr(owner, key, None)
        about = re.sub(r"\bNone\b", "unset", " ".join((field.description or "").split()))
        if key != "type" and (allowed := allowed_values(field)):
            about = f"{about} Allowed: {allowed}."
        yield from ("", *_comment(about))
        if value is None:
            yield f"# {key} ="
        else:
            line = f"{key} = {literal(value)}"
            yield f"# {line}" if name in self._fitted else line


def _about(section: BaseModel, kinds: _Kinds) -> list[str]:
    """Return the comment above a section."""
    text = " ".join((type(section).__doc__ or "").split())
    if len(kinds) > 1:
        types = ", ".join(type_of(kind) for kind in kinds)
        text = f"{text} Each type has keys of its own; the types are: {types}."
    return _comment(re.sub(r"^The section `[\w.]+`: ", "", text))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _commented(line: str) -> str:
    return line if not line or line.startswith("#") else f"# {line}"


def literal(value: Any) -> str:
    """Return a value in TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping) or is_dict(value):
        pairs = [f"{_name(str(key))} = {literal(inner)}" for key, inner in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if is_list(value) or isinstance(value, tuple | frozenset | set):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
