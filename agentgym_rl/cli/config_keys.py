"""The configuration keys on the command line: the table of --help, what the keys of a section do,
and `--section.key=value`.

Only functions that need the configuration import it: that takes 0.3 s, and most commands have no
keys.
"""

from __future__ import annotations

import json
import re
import textwrap
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from agentgym_rl.core import ConfigError, hint, near_names

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_KEYS = """\
any key of the configuration can be set as --section.key=value, for example
--rollout.max_staleness=1 --trainer.learning_rate=1e-4. --help SECTION says what
its keys do, as in --help algo.kl; `arl config` prints them all:
"""
_SCREEN = 50
"""The lines that the text of a section may have."""
_COMPARED = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def key_table() -> str:
    """Return the keys of every section, wrapped to 80 columns."""
    from agentgym_rl.config import Config

    lines = [_KEYS]
    for section, kind, keys in _sections(Config):
        name = f"{section} ({kind})" if kind else section
        text = f"{name}: {', '.join(keys)}" if section else ", ".join(keys)
        lines.append(textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)


def key_help(name: str) -> str:
    """Return the descriptions of a section's keys, on one screen; or the complete description of
    one key.

    Raises:
        ConfigError: there is no such section or key.
    """
    from agentgym_rl.config import Config, fields_of, section_types

    owners: Sequence[type[BaseModel]] = [Config]
    *above, last = name.split(".")
    for part in above:
        inner = (section_types(fields_of(kind)[part]) for kind in _with(owners, part))
        owners = [kind for kinds in inner for kind in kinds]
    fields = [fields_of(kind)[last] for kind in _with(owners, last)]
    if not fields:
        known = {
            f"{place}.{key}".lstrip(".") for place, _, keys in _sections(Config) for key in keys
        }
        known |= {place for place, _, _ in _sections(Config) if place}
        near = near_names(name, known, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(Config.model_fields)}"
        raise ConfigError(f"--help {name}: there is no such section or key; {hint}")
    if kinds := section_types(fields[0]):
        return _section_help(name, kinds)
    return "\n".join(dict.fromkeys("\n".join(_key_lines(name, it, None)) for it in fields))


def _with(owners: Sequence[type[BaseModel]], key: str) -> Iterator[type[BaseModel]]:
    from agentgym_rl.config import fields_of

    return (kind for kind in owners if key in fields_of(kind))


def _section_help(name: str, kinds: Sequence[type[BaseModel]]) -> str:
    """Return all texts of a section; if they are longer than a screen, the first two lines of each,
    or one, or only the keys."""
    lines: list[str] = []
    for most in (None, 2, 1, 0):
        lines = [line for text in _section_texts(name, kinds, most) for line in text]
        if most is not None:
            lines += ["", f"  --help {name}.KEY shows all about a key"]
        if len(lines) <= _SCREEN:
            break
    return "\n".join(lines)


def _section_texts(
    name: str, kinds: Sequence[type[BaseModel]], most: int | None
) -> Iterator[list[str]]:
    """Yield the lines of each type of a section and of its keys; a key that an earlier type has
    with the same text is only named."""
    from agentgym_rl.config import fields_of, type_of

    shown: dict[str, list[str]] = {}
    for kind in kinds:
        its = f" (type = {type_of(kind)})" if len(kinds) > 1 else ""
        about = re.sub(r"^The section `[\w.]+`: ", "", " ".join((kind.__doc__ or "").split()))
        yield textwrap.wrap(f"{name}{its}: {about}", 80, subsequent_indent="    ")
        texts = {key: _key_lines(key, it, most) for key, it in _plain(kind, not its).items()}
        yield from (
            [f"  {line}" for line in text] for key, text in texts.items() if text != shown.get(key)
        )
        if again := [key for key, text in texts.items() if text == shown.get(key)]:
            yield textwrap.wrap(
                f"as above: {', '.join(again)}", 76, initial_indent="  ", subsequent_indent="    "
            )
        shown |= texts
        if inner := [f"{name}.{key}" for key in fields_of(kind) if key not in _plain(kind, True)]:
            yield textwrap.wrap(
                f"sections: {', '.join(inner)}", 76, initial_indent="  ", subsequent_indent="    "
            )


def _plain(kind: type[BaseModel], with_type: bool) -> Mapping[str, FieldInfo]:
    """Return the keys of a section that are not sections themselves."""
    from agentgym_rl.config import fields_of, section_types

    fields = fields_of(kind).items()
    return {k: it for k, it in fields if not section_types(it) and (with_type or k != "type")}


def _key_lines(key: str, field: FieldInfo, most: int | None) -> list[str]:
    """Return a key with its default and the values that it takes, and up to `most` lines of what it
    does (None: all)."""
    value = field.get_default(call_default_factory=True)
    head = f"{key} = {'unset' if value is None else json.dumps(value, ensure_ascii=False)}"
    allowed = _allowed(field.annotation, field.metadata)
    lines = textwrap.wrap(f"{head}   {allowed}" if allowed else head, 76, subsequent_indent="    ")
    about = re.sub(r"\bNone\b", "unset", field.description or "")
    if most == 0:
        return [textwrap.shorten(f"{head}:   {about}", 76, placeholder=" …")]
    shown = textwrap.wrap(about, 72, max_lines=most, placeholder=" …", break_on_hyphens=False)
    return [*lines, *(f"  {line}" for line in shown)]


def allowed_values(field: FieldInfo) -> str:
    """Return the values that a key takes, "" where its default shows the type."""
    return _allowed(field.annotation, field.metadata)


def _allowed(kind: Any, marks: Sequence[Any]) -> str:
    """Return the values that a key takes, "a, b, c" or "> 0, ≤ 1"; "" where the default shows the
    type."""
    from agentgym_rl.config import OneOf

    found = [
        f"{sign} {getattr(mark, name):g}"
        for mark in marks
        for name, sign in _COMPARED.items()
        if getattr(mark, name, None) is not None
    ]
    if get_origin(kind) is Literal:
        found += [str(value) for value in get_args(kind)]
    found += [name for mark in marks if isinstance(mark, OneOf) for name in mark.names()]
    found += [text for part in get_args(kind) if (text := _allowed(part, _marks(part)))]
    return ", ".join(dict.fromkeys(found))


def _marks(part: Any) -> Sequence[Any]:
    return [
        mark
        for each in getattr(part, "__metadata__", ())
        for mark in (each, *getattr(each, "metadata", ()))
    ]


def dotted_keys(
    rest: Sequence[str],
    command: ArgumentParser,
    *,
    given: Mapping[str, Any],
    commands_with: Callable[[str], list[str]],
) -> dict[str, str]:
    """Parse `--a.b=c`, `--a.b c` and `a.b=c` to {"a.b": "c"}; any other argument is an error.
    `given` has the values of flags; `commands_with` returns the other commands that have such an
    argument, for the message."""
    found: dict[str, str] = {}
    takes_config = "config" in given
    words = iter(rest)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        is_key = "." in key and (word.startswith("--") or bool(equals and word[0] != "-"))
        if not (takes_config and is_key):
            near = _near(word, command, given, commands_with)
            command.error(f"unknown argument {word!r}{near}")
        if not equals:
            following = next(words, None)
            if following is None:
                raise ConfigError(f"--{key} has no value; write --{key}=value")
            value = following
        found[_spelled(key) if "-" in key else key] = value
    return found


def _spelled(key: str) -> str:
    """Return a dotted key with `_` for dashes in the names of sections and keys: rollout.group-size
    is rollout.group_size. Names inside values, such as options of Slurm, keep their dashes."""
    from agentgym_rl.config import Config, fields_of, section_types

    owners: Sequence[type[BaseModel]] = [Config]
    parts: list[str] = []
    for part in key.split("."):
        name = part.replace("-", "_")
        fields = [fields_of(kind)[name] for kind in _with(owners, name)]
        parts.append(name if fields else part)
        owners = [kind for field in fields for kind in section_types(field)]
    return ".".join(parts)


def _near(
    word: str,
    command: ArgumentParser,
    given: Mapping[str, Any],
    commands_with: Callable[[str], list[str]],
) -> str:
    """Return a hint: "; did you mean --steps?", or --rollout.max_staleness if only the section was
    missing, or the commands that have the argument; "" if there is none."""
    name = word.removeprefix("--").partition("=")[0]
    if name == word:
        said = hint("word", name, given)
        return f"; {said}" if said else ""
    flags = {flag: flag for flag in re.findall(r"--([\w-]+)", command.format_usage())}
    if name in flags and not word.startswith("-"):
        return f"; did you mean --{word}?"
    if name in flags:
        return f"; it goes after the command: {command.prog} {word}"
    if said := hint("flag", name, given):
        return f"; {said}"
    from agentgym_rl.config import Config

    sections = _sections(Config) if "config" in given else ()
    keys = {key: f"{section}.{key}" for section, _, names in sections if section for key in names}
    plays = command.prog.endswith(" serve") and name in ("env", "agent", "data")
    ours = name in keys or near_names(name, flags, cutoff=0.8)
    others = commands_with(f"--{name}") if plays or not ours else []
    if others:
        why = "; programs of yours play the episodes of `arl serve` (arl docs serve)" * plays
        return f", which is for {', '.join(f'`arl {other}`' for other in others)}{why}"
    for known in (flags, keys):
        for spelled in (name, name.replace("-", "_")):
            for near in near_names(spelled, known, cutoff=0.65):
                return f"; did you mean --{known[near]}?"
    return ""


def _sections(
    model: type[BaseModel], prefix: str = "", kind: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each section, its type and its own keys; the section of the top-level keys is "".

    A section with several types is yielded once per type, its key `type` first; the type is ""
    if there is only one.
    """
    from agentgym_rl.config import fields_of, section_types, type_of

    fields = fields_of(model)
    inner = {key: kinds for key, f in fields.items() if (kinds := section_types(f))}
    keys = [key for key in fields if key not in inner]
    yield prefix, kind, sorted(keys, key=lambda key: key != "type")
    for key, kinds in inner.items():
        for each in kinds:
            name = type_of(each) if len(kinds) > 1 else ""
            yield from _sections(each, f"{prefix}.{key}".lstrip("."), name)
