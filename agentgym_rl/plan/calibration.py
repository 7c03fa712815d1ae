"""Rates of a run that was recorded: what it did, and how long each part of it took.

Engines and the trainer are measured directly. What the rollout's process computes for a turn is
not: nothing in a run's folder says it. It is what makes the simulation of that run as fast as the
run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from agentgym_rl.batching import split_batch
from agentgym_rl.buffer import Group
from agentgym_rl.config import Config, VllmEngineConfig, load_config
from agentgym_rl.episode_reader import EpisodeReader
from agentgym_rl.errors import ConfigError
from agentgym_rl.metrics import COMPUTE_PHASES, read_metrics
from agentgym_rl.run_dir import config_of
from agentgym_rl.timeline.phases import Interval, read_phases
from agentgym_rl.trajectory import Trajectory

from .decode_steps import DecodeSteps, decode_steps, engine_rates, line
from .lengths import Limits, RecordedShapes, Turn
from .prediction import Prediction
from .rates import EngineRates, Rates, TrainerRates, WeightRates
from .simulation import simulate
from .trainer import learning_episodes, rounds_of

_TOLERANCE = 0.02
_ROUNDS = 8
_SHORTEST = 0.1
"""Quantile of waits."""
_FIRST_S, _LEAST_S, _MOST_S = 3e-3, 1e-5, 0.5
"""Of a turn's computing: where the search begins, and between what it stays."""

Recorded = tuple[Sequence[Turn], float, int]
"""Turns, reward, and tokens after the last reply."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run's folder says, without its text."""

    config: Config
    phases: dict[int, list[Interval]]
    metrics: list[dict[str, float | None]]
    batches: dict[int, list[list[Trajectory]]]
    """By step, the groups that were trained."""
    episodes: list[Trajectory]
    """All there are, of dropped groups too."""

    @property
    def episodes_per_s(self) -> float:
        """Trained ones, after the first batch."""
        later = sorted(self.batches)[1:]
        seconds = sum(self.metrics[step].get("time/step") or 0.0 for step in later)
        return sum(len(group) for step in later for group in self.batches[step]) / seconds

    @property
    def compute_s(self) -> float:
        """In which the trainer computed, of a batch but the first."""
        later = sorted(self.batches)[1:]
        return float(np.mean([_seconds(self.phases[step], *COMPUTE_PHASES) for step in later]))

    @property
    def turn_s(self) -> float:
        """From the last token of a turn to the last one of the next, the mean; 0 if there is only
        one turn."""
        ends = [_ends(episode) for episode in self.episodes]
        waits = [b - a for times in ends for a, b in pairwise(times)]
        return float(np.mean(waits)) if waits else 0.0

    def mean(self, name: str) -> float:
        """Of a metric, over all batches but the first."""
        values = [step.get(name) for step in self.metrics[1:]]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else 0.0

    def shapes(self, config: Config) -> RecordedShapes:
        """Its episodes for a run of `config`, with that one's limits."""
        groups = {step: [_recorded(group) for group in of] for step, of in self.batches.items()}
        return RecordedShapes(
            groups,
            Limits(config.rollout.max_tokens, config.own_engine.max_model_len),
            groups_per_batch=config.rollout.groups_per_batch,
            steps=config.steps,
            seed=config.seed,
        )


def read_run(run: Path) -> RecordedRun:
    """All of a run that a plan needs.

    Raises:
        ConfigError: it is no run, or too short to say anything.
    """
    config = load_config(config_of(run, f"arl plan --run {run}"))
    phases = {found.step: list(found.trainer) for found in read_phases(run)}
    metrics = read_metrics(run / "metrics.jsonl")
    with closing(EpisodeReader(run / "episodes.db")) as log:
        episodes = {name: log.trajectory(name) for name in log.episode_ids(untrained=True)}
        batches = {
            step: [[episodes[name] for name in names if name in episodes] for names in of.values()]
            for step, of in log.batches().items()
        }
    known = {s: groups for s, groups in batches.items() if s in phases and s < len(metrics)}
    if len(known) < 4:
        raise ConfigError(
            f"{run} has {len(known)} whole batches, and 4 are needed to calibrate on, better 20"
        )
    return RecordedRun(config, phases, metrics, known, list(episodes.values()))


def calibrate(run: Path, recorded: RecordedRun, base: Rates) -> tuple[Rates, Prediction]:
    """`base` with what was measured in its place, and the simulation of the run itself.

    What was measured while processors were short is what made the simulation short of them, too:
    so the trainer's and the rollout's rates are those with which the simulated run spends as long
    on a batch, on a publication and from turn to turn as the real one did.

    Raises:
        ConfigError: the run does not say enough.
    """
    rates = _measured(run, recorded, base)
    shapes = recorded.shapes(recorded.config)
    prediction = simulate(recorded.config, rates, shapes)
    for _ in range(_ROUNDS):
        factors = _factors(recorded, prediction)
        if max(abs(factor - 1) for factor in factors) < _TOLERANCE:
            break
        rates = _scaled(rates, *factors)
        rates = _handed_over(rates, recorded, prediction)
        prediction = simulate(recorded.config, rates, shapes)
    return rates, prediction


def _factors(recorded: RecordedRun, prediction: Prediction) -> tuple[float, float, float]:
    """By how much too fast the simulated trainer, publication and rollout are."""
    compute = recorded.compute_s / prediction.compute_s
    sync = recorded.mean("time/weight_sync") / prediction.weight_sync_s
    turn = (
        recorded.turn_s / prediction.turn_s
        if recorded.turn_s and prediction.turn_s
        else (prediction.episodes_per_s / recorded.episodes_per_s)
    )
    return compute, sync, turn


def _handed_over(rates: Rates, recorded: RecordedRun, prediction: Prediction) -> Rates:
    """With what the shortest waits for a batch took: there was one, and it was handed over."""
    real = [
        _seconds(recorded.phases[step], "rollout_wait") for step in sorted(recorded.batches)[1:]
    ]
    simulated = [step.seconds("rollout_wait") for step in prediction.steps[1:]]
    missing = float(np.quantile(real, _SHORTEST) - np.quantile(simulated, _SHORTEST))
    episodes = recorded.config.rollout.groups_per_batch * recorded.config.rollout.group_size
    each = max(rates.rollout.handover_s_per_episode + 0.7 * missing / episodes, 0.0)
    rollout = rates.rollout.model_copy(update={"handover_s_per_episode": each})
    return rates.model_copy(update={"rollout": rollout})


def _scaled(rates: Rates, compute: float, sync: float, turn: float) -> Rates:
    trainer, weights, rollout = rates.trainer, rates.weights, rates.rollout
    fields = ("forward_microbatch_s", "forward_s_per_token", "train_microbatch_s")
    fields += ("train_s_per_token", "optimizer_s")
    faster = {name: getattr(trainer, name) * compute for name in fields}
    turn_s = min(max(rollout.turn_s * turn, _LEAST_S), _MOST_S)
    return rates.model_copy(
        update={
            "trainer": trainer.model_copy(update=faster),
            "weights": weights.model_copy(update={"stage_s": weights.stage_s * sync}),
            "rollout": rollout.model_copy(update={"turn_s": turn_s}),
        }
    )


def _measured(run: Path, recorded: RecordedRun, base: Rates) -> Rates:
    config = recorded.config
    engine = config.own_engine
    prefix_cache = isinstance(engine, VllmEngineConfig) and engine.prefix_cache != "off"
    steps = decode_steps(recorded.episodes, prefix_cache=prefix_cache)
    computing = _inside(steps, recorded, COMPUTE_PHASES)
    publishing = _inside(steps, recorded, ("weight_sync",))
    # Where processors are short, what the engine alone needs shows while the trainer waits.
    calm = ~publishing & ~computing if base.cores is not None else ~publishing
    try:
        rates = engine_rates(steps.only(calm), prefix_cache=prefix_cache)
    except ValueError as error:
        if base.cores is None:
            raise ConfigError(f"{run}: {error}") from None
        rates = _slowed_down(run, steps.only(~publishing), prefix_cache=prefix_cache)
    speed = _speed(steps.only(computing), rates) if base.cores is not None else 1.0
    return base.model_copy(
        update={
            "lengths_of": "run",
            "calibrated_on": str(run.absolute()),
            "engine": rates,
            "trainer": _trainer_rates(recorded, speed),
            "weights": _weight_rates(recorded, speed),
            "rollout": base.rollout.model_copy(update={"turn_s": base.rollout.turn_s or _FIRST_S}),
        }
    )


def _slowed_down(run: Path, steps: DecodeSteps, *, prefix_cache: bool) -> EngineRates:
    """From all steps, where the trainer never waits long enough to see the others."""
    try:
        return engine_rates(steps, prefix_cache=prefix_cache)
    except ValueError as error:
        raise ConfigError(f"{run}: {error}") from None


def _inside(steps: DecodeSteps, recorded: RecordedRun, phases: Sequence[str]) -> np.ndarray:
    """[steps] bool: whether a decode step ended inside one of these phases of the trainer."""
    found = sorted(
        (start, end)
        for intervals in recorded.phases.values()
        for name, start, end in intervals
        if name in phases
    )
    starts = np.array([start for start, _ in found])
    ends = np.array([end for _, end in found])
    slot = np.searchsorted(starts, steps.ends_s, side="right") - 1
    return (slot >= 0) & (steps.ends_s <= ends[np.maximum(slot, 0)])


def _speed(steps: DecodeSteps, rates: EngineRates) -> float:
    """Of an engine while the trainer computes, as a share of its own; at most 1."""
    plain = steps.only(steps.prefills == 0)
    if not len(plain):
        return 1.0
    alone = rates.step_s + rates.step_s_per_request * plain.requests
    return min(1.0, float(alone.sum() / np.minimum(plain.seconds, 10 * alone).sum()))


def _trainer_rates(recorded: RecordedRun, speed: float) -> TrainerRates:
    config = recorded.config
    trainer, budget = config.trainer, config.trainer.max_tokens_per_microbatch
    passes: list[tuple[int, int, float]] = []
    forward: list[tuple[int, int, float]] = []
    for step, groups in recorded.batches.items():
        shards = split_batch(
            [Group(g[0].group_id, g[0].task_id, g) for g in groups if g],
            step=step,
            num_ranks=trainer.num_ranks,
            num_minibatches=trainer.num_minibatches,
            turn_discount=config.algo.turn_discount,
        )
        rounds = rounds_of([[i for p in s.minibatches for i in p] for s in shards], budget)
        forward.append((len(rounds), sum(rounds), _seconds(recorded.phases[step], "proximal")))
        learning = learning_episodes(shards[0], config.algo)
        expected: list[tuple[int, int]] = []
        for _ in range(trainer.epochs):
            for number in range(trainer.num_minibatches):
                parts = [[i for i in s.minibatches[number] if learning[i.episode]] for s in shards]
                if any(parts):
                    rounds = rounds_of(parts, budget)
                    expected.append((len(rounds), sum(rounds)))
        took = [b - a for name, a, b in recorded.phases[step] if name == "forward_backward"]
        if len(took) == len(expected):
            passes += [(*e, s) for e, s in zip(expected, took, strict=True)]
    if not passes:
        raise ConfigError("the run has no batch that changed its weights: nothing to calibrate on")
    # The first batch pays for what is made once.
    each_s, token_s = _plane(passes[trainer.num_minibatches :] or passes)
    alike = sum(each_s * n + token_s * tokens for n, tokens, _ in forward[1:])
    ratio = sum(seconds for _, _, seconds in forward[1:]) / max(alike, 1e-9)
    optimizer = [
        end - start
        for intervals in recorded.phases.values()
        for name, start, end in intervals
        if name == "optimizer"
    ]
    ordered = [recorded.phases[step] for step in sorted(recorded.phases)]
    between = [b[0][1] - a[-1][2] for a, b in pairwise(ordered)]
    return TrainerRates(
        forward_microbatch_s=ratio * each_s * speed,
        forward_s_per_token=ratio * token_s * speed,
        train_microbatch_s=each_s * speed,
        train_s_per_token=token_s * speed,
        optimizer_s=float(np.median(optimizer)) * speed,
        between_s=float(np.median(between)) * speed,
    )


def _plane(passes: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Seconds of a micro-batch and of a token: a line through the micro-batches of passes."""
    counts = np.array([n for n, _, _ in passes], float)
    tokens = np.array([n for _, n, _ in passes], float)
    seconds = np.array([s for _, _, s in passes], float)
    return line(tokens / counts, seconds / counts)


def _weight_rates(recorded: RecordedRun, speed: float) -> WeightRates:
    pauses = [step.get("time/engine_pause") or 0.0 for step in recorded.metrics[1:]]
    whole = [step.get("time/weight_sync") or 0.0 for step in recorded.metrics[1:]]
    pause_s = float(np.mean(pauses))
    engines = recorded.config.own_engine.num_servers
    stage_s = max(float(np.mean(whole)) - pause_s * engines, 0.0)
    return WeightRates(stage_s=stage_s * speed, pause_s=pause_s * speed)


def _seconds(intervals: Sequence[Interval], *phases: str) -> float:
    return sum(end - start for name, start, end in intervals if name in phases)


def _ends(episode: Trajectory) -> list[float]:
    """When the last token of each turn came, in order."""
    turns: dict[int, float] = {}
    for row in episode.rows:
        for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
            turns[turn] = float(row.times_s[row.turn_ids == turn].max())
    return sorted(turns.values())


def _recorded(group: Sequence[Trajectory]) -> list[Recorded]:
    found: list[Recorded] = []
    for episode in group:
        turns: dict[int, Turn] = {}
        tail = 0
        for row in episode.rows:
            for turn in np.unique(row.turn_ids[row.turn_ids >= 0]).tolist():
                places = np.flatnonzero(row.turn_ids == turn)
                turns.setdefault(turn, Turn(int(places[0]), len(places)))
                tail = len(row) - 1 - int(places[-1])
        if turns:
            found.append(([turns[turn] for turn in sorted(turns)], episode.reward, tail))
    return found
