"""The configuration files that runs keep, those of this version of the package and of earlier ones.

A run's `config.toml` has every key that existed when it was written, but those without a value. A
key that it lacks has the value that the package used then (`THEN`), which may differ from the
present default: an upgrade never changes what an unfinished run learns.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from agentgym_rl.core import ConfigError, Section, is_dict, is_list, reached, section_types, type_of

log = logging.getLogger(__name__)

FORMAT = 2
"""The format of a run's files: configuration, log and checkpoints. It grows with a change that an
earlier version of the package would misread. Files without a number have format 0."""
FORMAT_KEY = "format"
FOLDER_KEY = "folder"
"""The key of the folder in which a file was written, from which paths are found again elsewhere."""

THEN: Mapping[str, Any] = {
    "algo.advantage": None,
    "algo.advantage_options": {},
    "algo.behavior_clip": 1.0,
    "algo.expert_balance_coef": 0.0,
    "engine.expert_parallel_size": 1,
    "engine.pipeline_parallel_size": 1,
    "engine.prefix_cache": "off",
    "engine.replies": ["The answer is 42."],
    "engine.routing_replay": "off",
    "gateway.date": "",
    "logging.callbacks": [],
    "rollout.trial_s": 0.0,
    "trainer.backend": "fsdp",
    "trainer.mesh": "",
    "trainer.optimizer_options": {},
}
"""The values of keys in files that lack them, where they differ from today's defaults, and of every
key that is newer than format 1. None: no value."""

_ROWS = {"weight_field": "weight", "join_forms": False}
ROWS_THEN: Mapping[str, Mapping[str, Any]] = {
    "math": _ROWS,
    "reward": _ROWS,
    "code": {**_ROWS, "constant_answers": True, "several_answers": True},
}
"""The values of the option `rows` that runs of format 0 had, by the name of the environment."""
OPTIONS_THEN: Mapping[str, Mapping[str, Any]] = {"reward": {"blank_answers": True}}
"""The options that runs of formats 0 and 1 had, by the name of the environment."""


class LaterVersion(ConfigError):
    """The error for a file that a later version of the package has written."""


def is_record(file: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a configuration file was written by a run, and not by a person."""
    beside = (file.with_name(name) for name in ("episodes.db", "checkpoints", "evaluated.json"))
    return FORMAT_KEY in values or (
        file.name == "config.toml" and any(it.exists() for it in beside)
    )


def head_of(folder: Path | None) -> str:
    """Return the first lines of a run's own file, which is written into `folder`, if that is
    known."""
    place = {} if folder is None else {FOLDER_KEY: str(folder.resolve())}
    return tomli_w.dumps({FORMAT_KEY: FORMAT, **place})


def check_format(found: object, where: object) -> None:
    """Refuse a file of a run that a later version of the package has written.

    Raises:
        LaterVersion: the format is later than `FORMAT`.
        ConfigError: it is not a number.
    """
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ConfigError(f"{where}: {FORMAT_KEY} is {found!r}, expected a number of 0 or more")
    if found > FORMAT:
        raise LaterVersion(
            f"{where} has format {found}, of a later version of agentgym-rl; this one reads "
            f"formats 0 to {FORMAT}: use the version that wrote it, or a later one"
        )


def brought_up(model: type[BaseModel], record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the values of a run's file, brought up to date: missing keys get the values that were
    in effect then; values without effect, which earlier versions accepted, are dropped; and paths
    of files that were moved together with the run are corrected.

    Raises:
        ConfigError: see `check_format`.
    """
    values = {name: it for name, it in record.items() if name not in (FORMAT_KEY, FOLDER_KEY)}
    check_format(record.get(FORMAT_KEY, 0), file)
    for name, value in THEN.items():
        *tables, last = name.split(".")
        section, kind = values, model
        for table in tables:
            found = section.get(table)
            section[table] = dict(found) if is_dict(found) else {}
            section = section[table]
            kind = _kind(kind, table, section)
        if last in kind.model_fields and last not in section and value is not None:
            section[last] = value
    if (found := record.get(FORMAT_KEY, 0)) < 2 and is_dict(env := values.get("env")):
        values["env"] = _with_options(env, found)
    values = _without_useless(model, values)
    before, now = str(record.get(FOLDER_KEY) or record.get("run", "")), file.parent.resolve()
    return _found_again(values, before, now) if _is_elsewhere(before, now) else values


def _with_options(env: Mapping[str, Any], found: int) -> dict[str, Any]:
    """Return an environment of a run of the format `found`, by itself or in a mix, whose rows are
    read as they were then."""
    options = env.get("options")
    if not is_dict(options):
        return dict(env)
    name = re.split(r":|-v[0-9]+(?::|$)", str(env.get("id")))[0]
    options = {**OPTIONS_THEN.get(name, {}), **options}
    then = ROWS_THEN.get(name) if found == 0 else None
    rows: Any = options.get("rows") or {}
    if then is not None and is_dict(rows) and (rows or {"data", "eval_data"} & options.keys()):
        options["rows"] = {**then, **rows}
    if is_list(members := options.get("envs")):
        options["envs"] = [_with_options(it, found) if is_dict(it) else it for it in members]
    return {**env, "options": options}


def _is_elsewhere(before: str, now: Path) -> bool:
    return os.path.isabs(before) and Path(before) != now


def _found_again(value: Any, before: str, now: Path) -> Any:
    """Return a value of a run's file in which absolute paths are replaced by existing ones that lie
    to the folder `now` as they did to `before`: those inside that folder, and those that do not
    exist any more."""
    if is_dict(value):
        return {name: _found_again(it, before, now) for name, it in value.items()}
    if is_list(value):
        return [_found_again(it, before, now) for it in value]
    kind, colon, path = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not os.path.isabs(path):
        return value
    is_here = os.path.exists(path) and not Path(path).is_relative_to(before)
    there = os.path.normpath(now / os.path.relpath(path, before))
    if is_here or not os.path.exists(there):
        return value
    log.info("%s is found in %s: the run was moved from %s", path, there, before)
    return f"{kind}{colon}{there}"


def _kind(model: type[BaseModel], name: str, table: Mapping[str, Any]) -> type[BaseModel]:
    """Return the type of the section `name` that holds `table`."""
    kinds = section_types(model.model_fields[name])
    named = (kind for kind in kinds if "type" in kind.model_fields)
    wanted = table.get("type")
    return next((it for it in named if type_of(it) == wanted), kinds[0])


def _without_useless(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rules = model.needs if issubclass(model, Section) else ()
    useless = {
        it.key
        for it in rules
        if not it.fits(reached(model, values, it.other)) and not it.unless(values)
    }
    for name, value in values.items():
        if name in useless:
            continue
        if (
            is_dict(value)
            and name in model.model_fields
            and section_types(model.model_fields[name])
        ):
            value = _without_useless(_kind(model, name, value), value)
        found[name] = value
    return found
