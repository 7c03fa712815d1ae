"""The evaluations of `arl eval` and `agentgym_rl.evaluate`: a model, or a checkpoint, on held-out
tasks, with an own engine or at a URL.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Never

from agentgym_rl.cluster import Forks, LocalProcesses
from agentgym_rl.config import (
    Config,
    EndpointConfig,
    ModelConfig,
    dump_record,
    refuse_keys,
)
from agentgym_rl.core import ArlError, ConfigError, adapter_of, raise_cause
from agentgym_rl.engines import EngineSetup
from agentgym_rl.fleet import Fleet
from agentgym_rl.models import model_folder, with_model_defaults
from agentgym_rl.report import Progress, reporting_to
from agentgym_rl.rollout import (
    Meter,
    Pace,
    Player,
    Rollout,
    check_prompts,
    check_single_agent,
    endpoint_kind,
    env_spec,
    serving_policy,
    specimen,
    tried,
    turns_of,
)
from agentgym_rl.rollout.config_checks import check
from agentgym_rl.rollout.throughput import measuring
from agentgym_rl.storage import file_name, recorded_end
from agentgym_rl.storage.run_folder import MARK

from .evaluate import evaluate as play_all
from .evaluate import planned
from .folder import EvalFolder, EvalTarget, Evaluated, kept_date, open_folder, with_kept
from .result import EvalResult, summarize
from .target import chosen, first_engines


async def evaluate(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    run: Path | str | None = None,
    checkpoint: Path | str | None = None,
    out: Path | str | None = None,
    progress: Progress | None = None,
    rollout: Rollout | None = None,
    **keys: Never,
) -> EvalResult:
    """Evaluate a model on held-out tasks; return when every process has ended.

    It runs in the event loop of the caller, and does not change signal handlers or logging, like
    `agentgym_rl.train`.

    >>> import asyncio
    >>> from agentgym_rl import evaluate
    >>> small = {"eval.num_tasks": 4, "logging.progress": "none"}
    >>> asyncio.run(evaluate({"env": {"id": "math"}}, overrides=small)).num_episodes
    4

    Args:
        config: A `Config`, a TOML file, its content as nested mappings, or None for the defaults.
        overrides: Dotted keys on top, as on the command line: `{"eval.num_tasks": 64}`.
        run: The folder of a run: evaluates its final model, with its configuration.
        checkpoint: A run's `checkpoints/step-N`: evaluates its weights, by default with the
            configuration of that run.
        out: A folder that keeps every finished episode; those that it has are not played again.
        progress: The receiver of the evaluation's events; None: plain lines on stderr, unless
            logging.progress is "rich" or "none".
        rollout: A `Rollout` whose engines play, with the weights that they have now, instead of
            engines of this evaluation: then there is no other argument.

    Raises:
        ConfigError: the evaluation cannot work as configured; no request has been sent.
        ArlError: the evaluation failed. If several parts did, this is the cause of the others.
    """
    refuse_keys("evaluate", keys)
    if rollout is not None:
        if any(it is not None for it in (config, overrides, run, checkpoint, out, progress)):
            raise ConfigError(
                "evaluate(rollout=...) plays with the configuration of the rollout's run, and "
                "takes no other argument"
            )
        own, tasks = rollout.run.config, rollout.tasks("eval")
        return await play_all(
            own.eval, own.rollout, rollout.player.single_agent, tasks, seed=own.seed
        )
    target = chosen(config, overrides or {}, run=run, checkpoint=checkpoint)
    folder = None if out is None else Path(out)
    try:
        with reporting_to(progress, target.config.logging, total_steps=0) as progress:
            (evaluated,) = await evaluate_all([target], progress, out=folder)
    except (BaseExceptionGroup, ArlError) as error:
        raise_cause(error)
    return replace(evaluated.result, name=str(evaluated.report["model"]))


async def evaluate_all(
    targets: Sequence[EvalTarget], progress: Progress, *, out: Path | None = None
) -> list[Evaluated]:
    """Evaluate one model after the other.

    With `out` every finished episode is kept there, and episodes already there are not replayed.
    If there are several models, each has its own folder in it.

    Raises:
        ConfigError: some configuration cannot work; no request has been sent to any model yet.
    """
    checked = await _all_checked(_places(targets, out), say=progress.phase)
    spec = env_spec(targets[0].config.env, targets[0].config.rollout)
    check_single_agent(spec, await specimen(spec))
    found: list[Evaluated] = []
    async with tried(checked[0].config, "eval"):
        for number, (one, folder) in enumerate(_places(checked, out), start=1):
            if len(targets) > 1:
                progress.phase(f"model {number} of {len(targets)}: {one.model}")
            found.append(await _evaluate(one, progress, folder))
    return found


def _places(
    targets: Sequence[EvalTarget], out: Path | None
) -> list[tuple[EvalTarget, Path | None]]:
    if out is None or len(targets) == 1:
        return [(each, out) for each in targets]
    names = [file_name(each.model) for each in targets]
    unique = [
        f"{name}-{names[:i].count(name) + 1}" if name in names[:i] else name
        for i, name in enumerate(names)
    ]
    return [(each, out / name) for each, name in zip(targets, unique, strict=True)]


async def _all_checked(
    places: Sequence[tuple[EvalTarget, Path | None]], *, say: Callable[[str], None]
) -> list[EvalTarget]:
    """Refuse configurations that cannot work; return all models to evaluate, with the same date in
    their prompts: the date of the evaluation that is continued, if there is one."""
    dates = [kept_date(folder) for _, folder in places if folder is not None]
    date, checked = next((date for date in dates if date is not None), None), list[EvalTarget]()
    for one, folder in places:
        target = one if folder is None else with_kept(one, folder)
        config = target.config
        if date is not None and "date" not in config.gateway.model_fields_set:
            gateway = config.gateway.model_copy(update={"date": date})
            config = config.model_copy(update={"gateway": gateway})
        checked.append(await _checked(replace(target, config=config), say=say))
        if date is None:
            date = checked[-1].config.gateway.date or None
    return checked


async def _checked(target: EvalTarget, *, say: Callable[[str], None]) -> EvalTarget:
    """Refuse a configuration that cannot work; return the target with the defaults for its
    model."""
    await _check(target)
    config, folder = target.config, None
    if not isinstance(config.engine, EndpointConfig):
        folder = model_folder(config.model, config.env.id)
    turns = await turns_of(config.env, config.agent, config.rollout)
    config = with_model_defaults(config, folder, turns=turns)
    if folder is not None:
        await check_prompts(config, ("eval",), say=say)
    return replace(target, config=config)


async def _check(target: EvalTarget) -> None:
    config, checkpoint = target.config, target.checkpoint
    if isinstance(config.engine, EndpointConfig):
        endpoint = endpoint_kind(config.engine)
        if checkpoint:
            raise ConfigError(
                f"--checkpoint {checkpoint} needs an engine that loads its weights, such as "
                f"--engine=embedded; --engine={config.engine.type} asks "
                f"{endpoint.place(config.engine)} for --model NAME"
            )
        return await endpoint.check(config, config.engine)
    await check(config, trains=False)
    if config.own_engine.attached:
        raise ConfigError(
            "an evaluation does not use running servers (engine.urls), because the version of "
            "their weights is unknown; pass --engine.urls=[] to start a server, "
            "--engine=embedded, or --engine=openai --engine.base_url=URL/v1 --model NAME to "
            "evaluate the model that they serve"
        )


async def _evaluate(target: EvalTarget, progress: Progress, out: Path | None) -> Evaluated:
    with contextlib.ExitStack() as stack:
        folder: EvalFolder | None = None
        before: Mapping[str, Any] = {}
        if out is not None:
            is_new = not (out / MARK).exists()
            folder = stack.enter_context(open_folder(out, target))
            stack.enter_context(recorded_end(out, "eval", is_new=is_new))
            before = folder.finished()
        result, pace = await _missing(target, progress, folder, before)
        report = _report(target, result, pace)
        if folder is not None:
            report["out"] = str(folder.path)
            folder.write_result(report)
        return Evaluated(report, result)


async def _missing(
    target: EvalTarget, progress: Progress, folder: EvalFolder | None, before: Mapping[str, Any]
) -> tuple[EvalResult, Pace]:
    """Play the missing episodes; start no engine if there are none."""
    config = target.config
    spec = env_spec(config.env, config.rollout)
    tasks = await spec.read_tasks(config.eval.split, seed=config.eval.seed)
    places = planned(tasks, config.eval)
    there = [before[place.episode_id] for place in places if place.episode_id in before]
    if len(there) == len(places):
        progress.phase(f"all {len(there)} episodes of {target.model} are there")
        result = summarize(there, config.eval, duration_s=0.0, resumed=len(there))
        return result, Meter().read(episodes=0)
    if there:
        progress.phase(f"{len(there)} of {len(places)} episodes of {target.model} are there")
    async with _serving(target, progress) as player, measuring(player.services) as meter:
        kind = "held-out" if config.eval.split == "eval" else "training"
        progress.phase(f"evaluating on {kind} tasks")
        keep = folder.log.add_evaluated if folder else None
        result = await play_all(
            config.eval,
            config.rollout,
            player.single_agent,
            tasks,
            seed=config.seed,
            on_progress=progress.evaluating,
            before=before,
            keep=keep,
        )
        return result, meter.read(episodes=sum(result.outcomes.values()) - result.resumed)


def _report(target: EvalTarget, result: EvalResult, pace: Pace) -> dict[str, Any]:
    """Return the JSON object, without the rewards per task, which are in the episodes."""
    report = result.report() | asdict(pace) | {"model": target.model}
    report["split"] = target.config.eval.split
    engine = target.config.engine
    if isinstance(engine, EndpointConfig) and engine.base_url:
        report["base_url"] = engine.base_url
    return report


@contextlib.asynccontextmanager
async def serving_all(
    targets: Sequence[EvalTarget], progress: Progress
) -> AsyncIterator[tuple[list[EvalTarget], list[Player]]]:
    """Serve several models at once; yield them with the defaults that fit, and a player of each.

    Raises:
        ConfigError: some configuration cannot work; nothing is started yet.
    """
    checked = await _all_checked([(each, None) for each in targets], say=progress.phase)
    async with contextlib.AsyncExitStack() as stack:
        yield (
            checked,
            [
                await stack.enter_async_context(_serving(one, progress, first_index=number))
                for one, number in zip(checked, first_engines(checked), strict=True)
            ],
        )


@contextlib.asynccontextmanager
async def _serving(
    target: EvalTarget, progress: Progress, *, first_index: int = 0
) -> AsyncIterator[Player]:
    config = target.config
    if isinstance(config.engine, EndpointConfig):
        endpoint = endpoint_kind(config.engine)
        progress.phase(f"asking {config.model.path} at {endpoint.place(config.engine)}")
        async with endpoint.serving(config, config.engine) as player:
            yield player
        return
    async with serving_model(target, progress, first_index=first_index) as (_, player):
        yield player


@contextlib.asynccontextmanager
async def serving_model(
    target: EvalTarget,
    progress: Progress,
    *,
    first_index: int = 0,
    logs: Path | None = None,
    forks: Forks | None = None,
) -> AsyncIterator[tuple[Fleet, Player]]:
    """Start engines for a model, numbered from `first_index`; yield them, and a player of it.
    Their logs go to `logs`, or are removed in the end; with `forks` they are forked."""
    config = target.config
    with tempfile.TemporaryDirectory(prefix="arl-eval-") as name:
        temporary, model_dir = Path(name), model_folder(config.model, config.env.id)
        if target.checkpoint:
            progress.phase(f"reading {target.model}")
            from agentgym_rl.trainer import export_checkpoint  # torch, only needed here

            exported = temporary / "model"
            adapter = adapter_of(config)
            export_checkpoint(target.checkpoint, exported, model_dir=model_dir, adapter=adapter)
            model, model_dir = ModelConfig(path=str(exported)), exported
            config = config.model_copy(update={"model": model})
        config_file = temporary / "config.toml"
        config_file.write_text(dump_record(config), encoding="utf-8")
        async with LocalProcesses(
            logs or temporary / "logs",
            stop_timeout_s=config.cluster.stop_timeout_s,
            forks=forks,
        ) as processes:
            progress.phase("starting the engine")
            fleet = Fleet(
                EngineSetup.of(config),
                config_file,
                processes,
                model_dir=model_dir,
                first_index=first_index,
            )
            async with fleet.running(), serving_policy(config, fleet) as player:
                yield fleet, player
