"""The checks and the state of a resumed run: folder, configuration, log and checkpoints."""

from __future__ import annotations

import glob
import json
import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, LaterVersion, dump_toml, free_keys, load_config, unset_keys
from agentgym_rl.core import (
    ConfigError,
    Task,
    TaskSource,
    TrainerError,
    adapter_of,
    differences,
    flat,
    parse_json,
    parse_toml,
)
from agentgym_rl.gym.data import CONTENT, content_of, without_end
from agentgym_rl.models import (
    model_digests,
    model_folder,
    model_of_run,
    resolve_paths,
    with_model_defaults,
)
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import (
    EPISODES,
    WARMED_UP,
    EpisodeLog,
    EvalRecords,
    Recovered,
    check_log,
    checksums,
    config_of,
    newest_checkpoint,
    read_manifest,
)
from agentgym_rl.storage.checkpoints import list_checkpoints
from agentgym_rl.storage.episode_reader import explained
from agentgym_rl.storage.metrics import finite, rewrite_metrics
from agentgym_rl.storage.recovery import NOTHING, first_absent, recover
from agentgym_rl.storage.run_folder import MARK, MODEL, TASKS, build, shown

log = logging.getLogger(__name__)


def kept_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run in `folder`, read from its file.

    Raises:
        ConfigError: the file is damaged, or cut short.
    """
    try:
        before = parse_toml((folder / MARK).read_text(encoding="utf-8"))
        if cut := {"steps", "model", "rollout", "trainer", "logging"} - before.keys():
            raise ValueError(f"it has no {', '.join(sorted(cut))}")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--resume {shown(folder)}: {MARK} is damaged ({error}): put it back from a copy, or "
            "begin a new run"
        ) from error
    return before


def resumed_config(
    folder: Path,
    source: Config | Mapping[str, Any] | Path | str | None,
    overrides: Mapping[str, Any],
) -> Config:
    """Return the configuration `source`, or else that of the run in `folder`, with `overrides`, to
    resume that run with.

    A key that is newer than the run, and that `source` does not name, has the value that it had in
    effect when the run began.

    Raises:
        ConfigError: there is no run, or it cannot resume with that configuration.
    """
    if "run" in overrides:
        raise ConfigError("--resume continues in the run's own folder: leave out --run")
    file = config_of(folder, f"--resume {folder}")
    check_begun_with(folder)
    config = load_config(file if source is None else source, overrides)
    text = kept_config(folder)
    kept = flat(_complete(folder))  # with what was fitted when the run began
    named = flat(config.model_dump(exclude_unset=True))
    newer = kept.keys() - flat(text).keys() - named.keys()
    recorded = {key: kept[key] for key in {*unset_keys(config), *newer} if key in kept}
    config = resolve_paths(load_config(config, recorded))
    config = with_model_defaults(config, model_of_run(config.model, config.env.id, folder))
    check_resumable(folder, config)
    _check_rows(folder, config.env.options)
    return config


_OF_ROWS = ("data", "eval_data", "path", "eval_path", "dataset")
"""The options of environments that name files of rows; see `gym.data.rows.Rows`."""


def _check_rows(folder: Path, options: Mapping[str, Any]) -> None:
    """Refuse a run whose files of tasks are not where they were."""
    for key, path in flat(options, "env.options.").items():
        if key.rpartition(".")[2] not in _OF_ROWS or not isinstance(path, str):
            continue
        if not os.path.isabs(path) or os.path.exists(path) or glob.glob(path, recursive=True):
            continue
        flag = "--data FILE" if key == "env.options.data" else f"--{key}=FILE"
        raise ConfigError(
            f"--resume {shown(folder)}: the data of the run is gone: {path} ({key}). Put it back, "
            f"or name its new place: {flag}"
        )


def _complete(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run in `folder` with the keys that are newer than it.

    Raises:
        ConfigError: see `kept_config` and `load_config`.
    """
    kept_config(folder)
    return parse_toml(dump_toml(load_config(folder / MARK)))


def check_resumable(folder: Path, config: Config) -> None:
    """Refuse a configuration that the run in `folder` cannot be resumed with.

    More `steps` are possible; a decaying learning rate then falls until the new last one.

    Raises:
        ConfigError: the configuration differs; the message names the keys.
    """
    before = _complete(folder)
    longer = config.steps >= before["steps"]
    free = (*free_keys(Config, "resume"), *(("steps",) if longer else ()), *_gone(before))
    different = differences(before, parse_toml(dump_toml(config)), free=free)
    if different:
        hint = ""
        if not longer:
            hint = " (steps may only grow; to end a run earlier, interrupt it)"
        raise ConfigError(
            f"--resume {shown(folder)}: the run cannot continue with another configuration: "
            f"{'; '.join(different)}{hint}. Leave these keys out, or begin a new run"
        )


def _gone(before: Mapping[str, Any]) -> list[str]:
    """Return the keys of files and folders that are not where they were: the user may name their
    new place. What is in them is compared (`_check_model`, `_check_tasks`)."""
    paths = {key: value for key, value in flat(before).items() if isinstance(value, str)}
    return [key for key, it in paths.items() if os.path.isabs(it) and not os.path.exists(it)]


def schedule_moved(folder: Path, steps: int, schedule: str) -> str:
    """Return a sentence on the learning rate of a run that is prolonged to `steps` batches; "" if
    it stays as it was to be. Call it while `config.toml` has the former number."""
    before = kept_config(folder)["steps"]
    if steps == before or schedule == "constant":
        return ""
    return (
        f"steps {before} → {steps}: the learning rate (trainer.schedule {schedule!r}) now falls "
        f"until batch {steps - 1}, and is higher from here on than it was to be"
    )


def check_begun_with(folder: Path) -> None:
    """Refuse a run whose own warmed-up initial model (`--init sft`) has changed.

    Raises:
        ConfigError: files of the model are missing or damaged.
    """
    kept_config(folder)
    model = Path(load_config(folder / MARK).model.path)
    if not model.is_relative_to(folder.resolve()):
        return
    was = _told(folder / WARMED_UP).get("checksums", {})
    faults = [name for name in was or ("config.json",) if not (model / name).is_file()]
    if not faults:
        now = checksums(model / name for name in was)
        faults = [name for name in was if now[name] != was[name]]
    if faults:
        raise ConfigError(
            f"--resume {shown(folder)}: the initial model of the run is damaged: "
            f"{', '.join(faults)} in {shown(model)} is missing or damaged: put it "
            "back from a copy, or begin a new run"
        )


def check_kept(folder: Path, config: Config, tasks: TaskSource | None) -> Path | None:
    """Check that the run in `folder` can be resumed, with its log and the training tasks it had
    (None: other programs bring them). Return its newest complete checkpoint, or None without any.

    Raises:
        ConfigError: something is missing, damaged or changed; or the run has nothing left to do.
    """
    try:
        checkpoint = newest_checkpoint(folder / "checkpoints")
    except TrainerError as error:
        raise ConfigError(
            f"--resume {shown(folder)}: {error}; put one back from a copy, or remove the folder "
            "checkpoints to train every batch again from the log"
        ) from error
    step = read_manifest(checkpoint).step if checkpoint else 0
    if step >= config.steps:
        _check_unfinished(folder, config.steps, evaluates=config.eval.num_tasks > 0)
    _check_log(folder, step)
    others = config.algo.other_models
    uses_first = adapter_of(config) is not None or any(not it.model for it in others)
    model_dir = model_folder(config.model, config.env.id)
    _check_model(folder, model_dir, needed=checkpoint is None or uses_first)
    if tasks is not None:
        order = without_end(tasks, seed=config.seed, shuffle=config.rollout.shuffle)
        _check_tasks(folder, tasks, order, env_id=config.env.id)
    return checkpoint


def record_model(folder: Path, model_dir: Path) -> None:
    """Write the digests of the model that a run begins with to `model.json`."""
    (folder / MODEL).write_text(json.dumps(model_digests(model_dir)) + "\n", encoding="utf-8")


def _check_model(folder: Path, model_dir: Path, *, needed: bool) -> None:
    """Refuse another model than the run began with. Other weights do no harm unless they are
    `needed`, if a checkpoint takes their place; runs of earlier versions recorded nothing to
    compare."""
    was, now = _told(folder / MODEL), model_digests(model_dir)
    differ = [name for name in now if was.get(name, now[name]) != now[name]]
    if not differ:
        return
    said = f"{shown(model_dir)} has other {' and '.join(differ)} than the model the run began with"
    if needed or "tokenizer" in differ:
        raise ConfigError(
            f"--resume {shown(folder)}: {said}: put that model back, or name its place (--model "
            f"FOLDER){_anew(folder)}"
        )
    log.warning("%s; those of the checkpoint take their place", said)


def _check_unfinished(folder: Path, steps: int, *, evaluates: bool) -> None:
    """Refuse a run that has exported the weights of its last batch, and evaluated them."""
    last = EvalRecords(folder).read().get(steps)
    evaluated = last is None or last.status != "waiting" or not evaluates
    if (folder / "export").exists() and evaluated:
        raise ConfigError(
            f"--resume {shown(folder)}: the run is finished, with all its {steps} batches; --steps "
            f"{2 * steps} prolongs it"
        )


_WRITTEN_LATER = ("metrics.jsonl", TASKS, "phases.jsonl", "tokens", "evaluations", "export")
"""The files that no run has before its log says that it has begun."""


def _check_log(folder: Path, step: int) -> None:
    """Refuse a log that is damaged, or lost."""
    log = folder / EPISODES
    if log.exists():
        try:
            check_log(log, from_step=step)
        except LaterVersion:
            raise
        except ConfigError as error:
            raise _log_lost(folder, str(error)) from error
        with explained(log):
            is_begun = _is_begun(log)
        if is_begun:
            return _check_batches(folder, step)
    later = any((folder / name).exists() for name in _WRITTEN_LATER)
    if later or list_checkpoints(folder / "checkpoints"):
        raise _log_lost(folder, f"{EPISODES} is {'empty' if log.exists() else 'missing'}")


def _check_batches(folder: Path, step: int) -> None:
    """Refuse a log that is older than the checkpoint of `step` batches: its end was lost, or the
    log was restored from a copy."""
    absent = first_absent(folder / EPISODES)
    if absent < step:
        raise ConfigError(
            f"--resume {shown(folder)}: {EPISODES} lacks batch {absent}, which the checkpoint "
            f"step-{step} was trained on: put it back from a newer copy, or remove the checkpoints "
            f"of more than {absent} batches to go on from before"
        )


def _is_begun(log: Path) -> bool:
    """Return whether an undamaged log says that a run has begun."""
    with closing(sqlite3.connect(log)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        return any(
            table in tables and db.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]
            for table in ("incarnations", "groups")  # earlier versions had no incarnations
        )


def _log_lost(folder: Path, fault: str) -> ConfigError:
    return ConfigError(
        f"--resume {shown(folder)}: {fault}, and no other file records which groups were "
        f"trained: put it back from a copy{_anew(folder)}"
    )


def _anew(folder: Path) -> str:
    """Return the advice to begin a new run, as the end of a sentence."""
    if not list_checkpoints(folder / "checkpoints"):
        return ", or begin a new run"
    return (
        f", or begin a new run with its newest weights (arl export --model {shown(folder)} --out "
        "FOLDER, then arl train --model FOLDER)"
    )


_COMPARED_GROUPS = 200
_PLAYED = """
    SELECT g.task_index, t.task_id, t.seed, t.data FROM groups g JOIN tasks t USING (task_id)
    WHERE g.task_index >= 0 ORDER BY g.rowid DESC LIMIT ?"""


def _check_tasks(folder: Path, tasks: TaskSource, order: TaskSource, *, env_id: str) -> None:
    """Refuse other training tasks than the run had: compare the digest of all tasks, if their
    source makes one, and the tasks of the newest groups in the log, which were played in this
    `order`."""
    was, now = _told(folder / TASKS), tasks.describe()
    sources = ", ".join(map(str, now.get("sources", ()))) or env_id
    if CONTENT in was and CONTENT in now and was[CONTENT] != now[CONTENT]:
        before, after = (f"{said.get('tasks_train', '?')} tasks" for said in (was, now))
        changed = (
            f"{sources}: then {before} to train on, now {after if after != before else 'others'}"
        )
    elif (played := _changed_task(folder / EPISODES, order)) is not None:
        changed = f"{sources}: task {played} of its order is another one"
    else:
        return
    was_built = _build_of(folder / EPISODES)
    versions = ""
    if was_built != build():
        versions = (
            f", or go on with the version that began the run ({was_built or 'an earlier one'}) if "
            f"this one ({build()}) reads the same data otherwise"
        )
    raise ConfigError(
        f"--resume {shown(folder)}: the training data has changed since the run began "
        f"({changed}), so tasks would be skipped or played twice: put the data back as it was"
        f"{versions}{_anew(folder)}"
    )


def _build_of(log: Path) -> str:
    """Return the build that a run was last played by; "" if it is not recorded."""
    if not log.exists() or not _is_begun(log):
        return ""
    with explained(log), closing(sqlite3.connect(log)) as db:
        columns = {name for _, name, *_ in db.execute("PRAGMA table_info(incarnations)")}
        if "build" not in columns:
            return ""
        last = "SELECT build FROM incarnations ORDER BY incarnation DESC LIMIT 1"
        return next((str(found) for (found,) in db.execute(last)), "")


def _changed_task(log: Path, order: TaskSource) -> int | None:
    """Return the index of a played task that differs from the current one, or None."""
    if not log.exists() or not _is_begun(log):
        return None
    with explained(log), closing(sqlite3.connect(log)) as db:
        for index, id, seed, data in db.execute(_PLAYED, (_COMPARED_GROUPS,)):
            if _identity(order[index]) != (id, seed, content_of(parse_json(data))):
                return index
    return None


def _identity(task: Task) -> tuple[str, int, str]:
    return task.id, task.seed, content_of(json.loads(json.dumps(dict(task.data))))


def _told(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`; {} if none can be read."""
    try:
        told = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def begin(
    run_dir: Path, episodes: EpisodeLog, checkpoint: Path | None, *, num_ranks: int, num_steps: int
) -> Recovered:
    """Return the state of the run from `checkpoint` on, after bringing the log and the metrics file
    to that point.

    Raises:
        ConfigError: see `recover`.
    """
    step = read_manifest(checkpoint).step if checkpoint else 0
    name = str(checkpoint or "")
    incarnation = episodes.begin(
        step=step, checkpoint=name, num_ranks=num_ranks, num_steps=num_steps
    )
    if not incarnation:
        if episodes.num_groups:
            raise ConfigError(
                f"{shown(run_dir)}: the run was begun by an earlier version of this package, whose "
                "log does not say enough to go on; begin a new run"
            )
        return NOTHING
    remove(run_dir / "export")  # if the run had ended, of fewer batches or another last evaluation
    found = recover(run_dir / EPISODES, step=step, checkpoint=checkpoint, incarnation=incarnation)
    rewrite_metrics(run_dir / "metrics.jsonl", [finite(metrics) for metrics in found.history])
    log.info(
        "going on from %s: %d batches that were handed out since then are trained from the log, "
        "%d groups wait, %d have begun",
        *(f"step {step}", len(found.leased), len(found.waiting), len(found.begun)),
    )
    return found
