"""The loading of configuration files and `--section.key=value` into a checked model.

Error messages name the nearest match."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from agentgym_rl.core import (
    ConfigError,
    Section,
    extension_names,
    field_of,
    flat,
    hint,
    is_dict,
    is_list,
    is_mapping,
    key_faults,
    load_extension,
    missing_key,
    near_key,
    near_names,
    near_of,
    parse_toml,
    reached,
    section_types,
    table_of,
    type_of,
    without,
)

from .records import brought_up, is_record

M = TypeVar("M", bound=BaseModel)


class MissingPackage(ConfigError):
    """The error for a key of a package that was left out of the installation."""


FORMATS = "config_files"
"""The group of entry points of functions that parse configuration files other than TOML, by the
ending of their names. They raise ValueError for texts that they cannot parse."""

PRESETS = Path(__file__).parent / "presets"
"""The folder of presets: named files of values, one published recipe each."""


def load(
    model: type[M], source: Mapping[str, Any] | Path | None, overrides: Mapping[str, Any]
) -> M:
    """Load `model` from a file, or the tables of one, with dotted `overrides` on top (see
    `config.load_config`).

    Raises:
        ConfigError: an unreadable file, an unknown preset or key, or a bad value.
    """
    values = read_file(source) if isinstance(source, Path) else deepcopy(dict(source or {}))
    shorts = {name: key for name, it in model.model_fields.items() if (key := _short(it))}
    values = {name: table_of(it, shorts.get(name, "")) for name, it in values.items()}
    overrides = {
        f"{name}.{shorts[name]}" if name in shorts and not is_mapping(it) else name: it
        for name, it in overrides.items()
    }
    if isinstance(source, Path) and is_record(source, values):
        values = brought_up(model, values, source)
        try:
            return _load(model, values, overrides, preset="")  # it has all values of its preset
        except MissingPackage:
            raise
        except ConfigError as error:
            try:
                model.model_validate(values)
            except ValidationError:
                raise ConfigError(
                    f"{source} was written by another version of agentgym-rl, and this one refuses "
                    f"it: {error}\nUse the version that began the run"
                ) from error
            raise  # the overrides are to blame
    places: Mapping[str, Path] = source.places if isinstance(source, Layers) else {}
    if isinstance(source, Path):
        places = dict.fromkeys(flat(values), source)
    return _load(model, values, overrides, preset=str(values.get("preset", "")), places=places)


def _short(field: FieldInfo) -> str:
    """Return the key of a section that one value stands for (`Section.short`); "": none."""
    kinds = section_types(field)
    if len(kinds) > 1:
        return "type"
    return kinds[0].short if kinds and issubclass(kinds[0], Section) else ""


def _load(
    model: type[M],
    values: dict[str, Any],
    overrides: Mapping[str, Any],
    *,
    preset: str,
    places: Mapping[str, Path] = MappingProxyType({}),
) -> M:
    named = {key: f" in {file}" for key, file in places.items() if key not in overrides}
    chosen = {*flat(values), *flat(overrides)}
    literals: Mapping[str, Any] = {
        key: _literal(model, key.split("."), value) if isinstance(value, str) else value
        for key, value in overrides.items()
    }
    preset = str(literals.get("preset", preset))
    below: dict[str, Any] = {}
    if preset:
        below = read_file(_preset_file(preset))
        _switch_rows(below, values)
        values = _on_top(below, values)
    literals = _expanded(model, values, literals)
    _switch_types(model, values, literals)
    above: dict[str, Any] = {}
    for key, value in literals.items():
        _set(above, key.split("."), value)
    _switch_rows(values, above)
    for key, value in literals.items():
        _set(values, key.split("."), value)
    _drop_moot(model, values, below, chosen=chosen)
    _reject_unknown(model, values, root=model, named=named)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [(line, line.partition(":")[0]) for line in key_faults(model, error)]
        lines = "".join(f"\n  {line}{named.get(key, '')}" for line, key in faults)
        raise ConfigError(f"the configuration is wrong:{lines}") from error


def _expanded(
    model: type[BaseModel], values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return `overrides` of a file's `values`, plus the keys that set keys of text stand for
    (`Section.stands_for`).

    Raises:
        ConfigError: such a text cannot be read, or another key contradicts it.
    """
    in_file = _dotted(values)
    for key, meaning in _short_forms(model):
        text = str({**in_file, **overrides}.get(key, ""))
        if not text:
            continue
        found = meaning(text)
        # A text in the overrides takes precedence over the complete file.
        beside = overrides if key in overrides else {**in_file, **overrides}
        for other, value in found.items():
            given = beside.get(other, value)
            if str(given).lower() != str(value).lower():
                raise ConfigError(
                    f"{other} is {_toml(given)}, and {key} {text!r} makes it {_toml(value)}: leave "
                    "out one of them"
                )
        overrides = {**overrides, **found}
    return overrides


def _toml(value: Any) -> str:
    """Return a plain value as it is written in a file."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _short_forms(
    model: type[BaseModel],
) -> Iterator[tuple[str, Callable[[str], Mapping[str, Any]]]]:
    for name, field in model.model_fields.items():
        for kind in section_types(field):
            if issubclass(kind, Section):
                yield from ((f"{name}.{key}", of) for key, of in kind.stands_for.items())


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file's sections in dotted form, like overrides."""
    sections = [(section, it) for section, it in values.items() if is_mapping(it)]
    return {f"{section}.{key}": value for section, it in sections for key, value in it.items()}


def preset_names() -> list[str]:
    """Return the names that `preset` may have."""
    return sorted(file.stem for file in PRESETS.glob("*.toml"))


def _preset_file(name: str) -> Path:
    names = preset_names()
    if name not in names:
        said = hint("preset", name) or near_of(name, names)
        raise ConfigError(f"preset: no preset {name!r}; {said}")
    return PRESETS / f"{name}.toml"


def read_file(path: Path) -> dict[str, Any]:
    """Read a configuration file, whose keys are not checked yet: TOML, or by its ending the format
    of a member of the group `agentgym_rl.config_files`.

    Raises:
        ConfigError: it cannot be read, or is not of that format.
    """
    ending = path.suffix.removeprefix(".").lower()
    others = extension_names(FORMATS) if ending != "toml" else []
    parse: Callable[[str], dict[str, Any]] = parse_toml
    if ending in others:
        parse = load_extension(FORMATS, ending)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        near = near_names(path.name, (it.name for it in path.absolute().parent.glob("*.*")))
        said = f"did you mean {path.with_name(near[0])}?" if near else f"looked in {Path.cwd()}"
        raise ConfigError(f"cannot read configuration {path}: no such file; {said}") from error
    except IsADirectoryError as error:
        names = f'evaluate(run="{path}"), train(resume="{path}"), or --run {path}'
        said = f"; of a run: {names}" if (path / "config.toml").exists() else ""
        raise ConfigError(f"cannot read configuration {path}: it is a folder{said}") from error
    except (OSError, ValueError) as error:
        known = f"a configuration is TOML{''.join(f', or .{name}' for name in others)}"
        said = f"; {known}" if ending not in others and ending != "toml" else ""
        raise ConfigError(f"cannot read configuration {path}: {error}{said}") from error


class Layers(dict[str, Any]):
    """The tables of several configuration files, with the file of each dotted key (`places`)."""

    places: Mapping[str, Path] = MappingProxyType({})


def layered(model: type[BaseModel], files: Iterable[Path]) -> Layers:
    """Return the tables of several files, each on top of those before it.

    Raises:
        ConfigError: a file cannot be read.
    """
    values: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for file in files:
        above = read_file(file)
        if is_record(file, above):
            above = brought_up(model, above, file)
        _switch_rows(values, above)
        values = _on_top(values, above)
        places |= dict.fromkeys(flat(above), file)
    layers = Layers(values)
    layers.places = places
    return layers


def _on_top(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a section with another `type` replaces the one below completely."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        if is_dict(value) and is_dict(under):
            same = value.get("type", under.get("type")) == under.get("type")
            value = _on_top(under, value) if same else value
        merged[key] = value
    return merged


def _switch_types(
    model: type[BaseModel], values: dict[str, Any], overrides: Mapping[str, Any], prefix: str = ""
) -> None:
    """Remove the keys of a section that its new type lacks, if an override changes that type;
    inside other sections, where a key can mean something else in another type, remove all keys."""
    for name, field in model.model_fields.items():
        table, wanted = values.get(name), overrides.get(f"{prefix}{name}.type")
        kinds = section_types(field)
        if len(kinds) == 1 and is_dict(table):
            _switch_types(kinds[0], table, overrides, f"{prefix}{name}.")
        if wanted is None or len(kinds) < 2 or not is_dict(table):
            continue
        if wanted == table.get("type", type_of(kinds[0])):
            continue
        new = [kind for kind in kinds if type_of(kind) == wanted]
        for key in [key for key in table if new and (prefix or key not in new[0].model_fields)]:
            del table[key]


def _drop_moot(
    model: type[BaseModel],
    values: dict[str, Any],
    preset: Mapping[str, Any],
    *,
    chosen: Collection[str],
    prefix: str = "",
) -> None:
    """Drop the values of a preset that have no effect with the keys that the user has `chosen`;
    such values of the user's own would be refused."""
    for rule in model.needs if issubclass(model, Section) else ():
        fits = rule.fits(reached(model, values, rule.other)) or rule.unless(values)
        if rule.key in preset and not fits:
            said = flat({rule.key: preset[rule.key]})
            without(values, [name for name in said if f"{prefix}{name}" not in chosen])
    for name, field in model.model_fields.items():
        kinds, table, below = section_types(field), values.get(name), preset.get(name)
        if len(kinds) == 1 and is_dict(table) and is_dict(below):
            _drop_moot(kinds[0], table, below, chosen=chosen, prefix=f"{prefix}{name}.")


_ROWS_OF: Mapping[str, Sequence[str]] = {
    "path": ("eval_path",),
    "dataset": ("config", "revision", "train_split", "eval_split"),
}
"""The sources of an environment's rows, each with the keys that apply only to that source."""


def _switch_rows(values: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Drop the source of an environment's rows in `values`, with the keys that belong to it, if
    `above` names another source: the later choice wins."""
    below, chosen = _rows(values), _rows(above)
    if not below:
        return
    again = {"path", "eval_path"} & chosen.keys()  # possibly in the other of the two forms
    sources = chosen.keys() & _ROWS_OF
    if not sources and "eval_path" in chosen:  # only a file, in place of a data set
        sources = {"path"}
    if sources:
        for source, its_own in _ROWS_OF.items():
            kept = source in sources and (source == "path" or below.get(source) == chosen[source])
            again |= set() if kept else {source, *its_own}
    for key in again:
        _drop_row_key(values, key)


def _rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of `env.options`, including the short forms (`data` is a path)."""
    env = values.get("env")
    options = env.get("options") if is_dict(env) else None
    if not is_dict(options):
        return {}
    rows = options.get("rows")
    short = {"path": options.get("data"), "eval_path": options.get("eval_data")}
    given = {name: value for name, value in short.items() if value is not None}
    return given | (rows if is_dict(rows) else {})


def _drop_row_key(values: dict[str, Any], key: str) -> None:
    options = values["env"]["options"]
    if is_dict(options.get("rows")):
        options["rows"].pop(key, None)
    options.pop({"path": "data", "eval_path": "eval_data"}.get(key), None)


def _literal(model: type[BaseModel], keys: Sequence[str], text: str) -> Any:
    """Return the value of `--a.b=text`: TOML if it is valid TOML, else text; for a key that holds
    a list, `x,y` is a list, too."""
    holds = _annotations(model, keys)
    value = _plain(text)
    if any(get_origin(kind) is tuple for kind in holds) and not is_list(value):
        return [_plain(part.strip()) for part in text.split(",") if part.strip()]
    is_text = any(kind in (str, str | None) for kind in holds)
    return text if is_text and not isinstance(value, str) else value


def _plain(text: str) -> Any:
    """Parse `text` as TOML; return it unchanged if it is not TOML."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _annotations(model: type[BaseModel], keys: Sequence[str]) -> list[Any]:
    """Return the types that the key may have, one for each type of its section."""
    field = field_of(model, keys[0])
    if field is None:
        return []
    if not keys[1:]:
        return [field.annotation]
    return [kind for it in section_types(field) for kind in _annotations(it, keys[1:])]


def _set(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    *tables, last = keys
    for key in tables:
        inner = values.setdefault(key, {})
        if not is_dict(inner):
            raise ConfigError(f"{'.'.join(keys)}: {key} is a value, not a section")
        values = inner
    values[last] = value


def _reject_unknown(
    model: type[BaseModel],
    values: Mapping[str, Any],
    prefix: str = "",
    kinds: Sequence[type[BaseModel]] = (),
    *,
    root: type[BaseModel],
    named: Mapping[str, str],
) -> None:
    """Raise ConfigError at the first key that `model`, a section of `root`, lacks; `kinds` are the
    section's types, and `named` has the file of a dotted key."""
    for key, value in values.items():
        field = field_of(model, key)
        if field is None:
            if why := missing_key(f"{prefix}{key}"):
                raise MissingPackage(why)
            other = next((kind for kind in kinds if key in kind.model_fields), None)
            elsewhere = f"{prefix}type {type_of(other)!r} has it" if other else ""
            said = elsewhere or near_key(root, f"{prefix}{key}", (model,))
            if is_mapping(value) and issubclass(model, Section) and model.added_by:
                said += f" (sections of other packages need {model.added_by}, installed here)"
            places = (it for name, it in named.items() if f"{name}.".startswith(f"{prefix}{key}."))
            raise ConfigError(f"unknown key {prefix}{key}{next(places, '')}; {said}")
        inner = _section_of(field, value)
        if inner is not None:
            types = section_types(field)
            _reject_unknown(inner, value, f"{prefix}{key}.", types, root=root, named=named)


def _section_of(field: FieldInfo, value: Any) -> type[BaseModel] | None:
    """Return the section of a table; if several are possible, by its `type`, or the default.
    None: it is no table, or has a type that is refused later."""
    kinds = section_types(field)
    if not kinds or not is_mapping(value):
        return None
    if len(kinds) == 1 or "type" not in value:
        return kinds[0]
    return next((kind for kind in kinds if type_of(kind) == value["type"]), None)
