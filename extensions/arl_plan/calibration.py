"""The data of a recorded run without any text, and its rates: the time that each of its parts took.

Engines and the trainer are measured directly, engines undisturbed and while the trainer computed.
The computing time of the rollout process for a turn is not recorded in a run's folder. Its value is
fitted so that the simulation of the run is as fast as the run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from agentgym_rl.config import Config, ServerEngineConfig, load_config
from agentgym_rl.controller import shards_of
from agentgym_rl.core import ConfigError, Group, Trajectory
from agentgym_rl.storage import COMPUTE_PHASES, EpisodeReader, config_of, read_phases
from agentgym_rl.storage.metrics import read_metrics
from agentgym_rl.storage.phases import Interval

from .decode_steps import (
    DecodeSteps,
    Floats,
    arrival_rates,
    arrived_turns,
    decode_steps,
    engine_rates,
    line,
)
from .episodes import DrawnShapes, Limits, Recorded, RecordedShapes, Shapes, Turn
from .rates import EngineRates, LengthRates, Rates, TrainerRates, WeightRates
from .simulation import Prediction, simulate
from .trainer import learning_passes, packed_once, packed_separately, proximal_rows, rounds_of

_VLLM_SERVER_CORES = 0.5
"""The processors that vLLM's HTTP server uses, a process besides the one that computes. On CPUs it
used half as much processor time as that one (40 % of a core next to 83 %; docs/plan.md)."""
_LITTLE = 0.1
"""The share of a decode step or turn that may overlap a phase without being counted to it."""
_TOLERANCE = 0.02
_ROUNDS = 8
_SHORTEST = 0.1
"""The quantile that counts as the shortest wait for a batch."""
_FIRST_S, _LEAST_S, _MOST_S = 3e-3, 1e-5, 0.5
"""The initial value and the bounds for the computing time of a turn, in seconds."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The data of a run's folder, without its text."""

    config: Config
    phases: dict[int, list[Interval]]
    metrics: list[dict[str, float | None]]
    batches: dict[int, list[list[Trajectory]]]
    """The trained groups by step."""
    episodes: list[Trajectory]
    """The recorded episodes, including those of dropped groups."""

    @property
    def episodes_per_s(self) -> float:
        """Return the trained episodes per second, after the first batch."""
        later = sorted(self.batches)[1:]
        seconds = sum(self.metrics[step].get("time/step") or 0.0 for step in later)
        return sum(len(group) for step in later for group in self.batches[step]) / seconds

    @property
    def compute_s(self) -> float:
        """Return the mean seconds of a batch in which the trainer computed, without the first."""
        later = sorted(self.batches)[1:]
        return float(np.mean([_seconds_of(self.phases[step], *COMPUTE_PHASES) for step in later]))

    @property
    def turn_s(self) -> float:
        """Return the mean seconds from the last token of a turn to the last one of the next; 0 if
        there is only one turn."""
        ends = [_ends(episode) for episode in self.episodes]
        waits = [b - a for times in ends for a, b in pairwise(times)]
        return float(np.mean(waits)) if waits else 0.0

    @property
    def shares_prefixes(self) -> bool:
        """Return whether its ranks computed beginnings that rows share once."""
        return any(step.get("throughput/prefix_shared") for step in self.metrics)

    def mean(self, name: str) -> float:
        """Return the mean of a metric over all batches but the first."""
        values = [step.get(name) for step in self.metrics[1:]]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else 0.0


def read_run(run: Path) -> RecordedRun:
    """Read the data of a run that a plan needs.

    Raises:
        ConfigError: the folder is not a run, or the run is too short to calibrate on.
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


def _seconds_of(intervals: Sequence[Interval], *phases: str) -> float:
    """Return the total seconds of these phases."""
    return sum(end - start for name, start, end in intervals if name in phases)


def _ends(episode: Trajectory) -> list[float]:
    """Return the times of the last token of each turn, in order."""
    turns: dict[int, float] = {}
    for row in episode.rows:
        for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
            turns[turn] = float(row.times_s[row.turn_ids == turn].max())
    return sorted(turns.values())


def _recorded(group: Sequence[Trajectory]) -> list[Recorded]:
    found: list[Recorded] = []
    for episode in group:
        turns: dict[int, Turn] = {}
        tail, tokens = 0, np.zeros(0, np.int32)
        for row in episode.rows:
            for turn in np.unique(row.turn_ids[row.turn_ids >= 0]).tolist():
                places = np.flatnonzero(row.turn_ids == turn)
                turns.setdefault(turn, Turn(int(places[0]), len(places)))
                tail, tokens = len(row) - 1 - int(places[-1]), row.tokens
        if turns:
            ordered = [turns[turn] for turn in sorted(turns)]
            found.append(Recorded(ordered, episode.reward, tail, tokens))
    return found


def shapes_of(config: Config, lengths: LengthRates, recorded: RecordedRun | None) -> Shapes:
    """Return the shapes of the episodes of a run of `config`, cut at its limits: recorded if
    possible, else drawn."""
    limits = Limits(config.rollout.max_tokens, config.own_engine.max_model_len)
    if recorded is None:
        return DrawnShapes(lengths, limits, seed=config.seed)
    return RecordedShapes(
        {step: [_recorded(group) for group in of] for step, of in recorded.batches.items()},
        limits,
        groups_per_batch=config.rollout.groups_per_batch,
        steps=config.steps,
        seed=config.seed,
    )


def engine_speed(recorded: RecordedRun, *, contended: bool) -> tuple[EngineRates, float]:
    """Measure the rates of an undisturbed engine, and its relative speed while the trainer
    computes, which is 1 unless processors are `contended`.

    Raises:
        ValueError: the run has too little data.
    """
    engine = recorded.config.own_engine
    if isinstance(engine, ServerEngineConfig):
        cached = engine.prefix_cache != "off"
        turns = arrived_turns(
            recorded.episodes, prefix_cache=cached, num_servers=engine.num_servers
        )
        turns = turns.only(_share(turns, recorded, ("weight_sync",)) < _LITTLE)
        computing = _share(turns, recorded, COMPUTE_PHASES) * contended
        rates, speed = arrival_rates(turns, computing, prefix_cache=cached)
        return rates.model_copy(update={"server_cores": _VLLM_SERVER_CORES}), speed
    cached = any(step.get("engine/reused_tokens") for step in recorded.metrics)
    steps = decode_steps(recorded.episodes, prefix_cache=cached)
    computing = _share(steps, recorded, COMPUTE_PHASES)
    publishing = _share(steps, recorded, ("weight_sync",))
    # If processors are short, the engine is undisturbed only while the trainer waits.
    calm = publishing + computing * contended < _LITTLE
    try:
        rates = engine_rates(steps.only(calm), prefix_cache=cached)
    except ValueError:  # the trainer never waits long enough for that
        rates = engine_rates(steps.only(publishing < _LITTLE), prefix_cache=cached)
    return rates, _speed(steps.only(computing > 0.5), rates) if contended else 1.0


def _share(steps: DecodeSteps, recorded: RecordedRun, phases: Sequence[str]) -> Floats:
    """Return [steps] the share of each step inside these phases of the trainer, 0 to 1."""
    found = sorted(
        (start, end)
        for intervals in recorded.phases.values()
        for name, start, end in intervals
        if name in phases
    )
    if not found:
        return np.zeros(len(steps))
    edges = np.array(found).ravel()
    lengths = np.diff(edges)
    lengths[1::2] = 0.0  # the gaps between intervals
    inside = np.concatenate(([0.0], np.cumsum(lengths)))
    starts = np.interp(steps.ends_s - steps.seconds, edges, inside)
    return (np.interp(steps.ends_s, edges, inside) - starts) / steps.seconds


def _speed(steps: DecodeSteps, rates: EngineRates) -> float:
    plain = steps.only(steps.prefills == 0)
    if not len(plain):
        return 1.0
    alone = rates.step_s + rates.step_s_per_request * plain.requests
    return min(1.0, float(alone.sum() / np.minimum(plain.seconds, 10 * alone).sum()))


def calibrate(run: Path, recorded: RecordedRun, base: Rates) -> tuple[Rates, Prediction]:
    """Return `base` with the measured rates of a run in it, and the simulation of that run.

    Times measured while processors were short already contain that shortage, which the simulation
    adds again. So the trainer's and the rollout's rates are fitted: the simulated run spends as
    long on a batch, on a publication and from turn to turn as the real one did.

    Raises:
        ConfigError: the run has too little data.
    """
    rates = _measured(run, recorded, base)
    shapes = shapes_of(recorded.config, rates.lengths, recorded)
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
    """Return the factors by which the simulated trainer, publication and rollout are too fast."""
    compute = recorded.compute_s / prediction.compute_s
    sync = recorded.mean("time/weight_sync") / prediction.weight_sync_s
    turn = (
        recorded.turn_s / prediction.turn_s
        if recorded.turn_s and prediction.turn_s
        else (prediction.episodes_per_s / recorded.episodes_per_s)
    )
    return compute, sync, turn


def _handed_over(rates: Rates, recorded: RecordedRun, prediction: Prediction) -> Rates:
    """Fit the handover time to the shortest waits for a batch, in which a batch was ready."""
    real = [
        _seconds_of(recorded.phases[step], "rollout_wait") for step in sorted(recorded.batches)[1:]
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
    try:
        rates, speed = engine_speed(recorded, contended=base.cores is not None)
    except ValueError as error:
        raise ConfigError(f"{run}: {error}") from None
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


def _trainer_rates(recorded: RecordedRun, speed: float) -> TrainerRates:
    config = recorded.config
    trainer, budget = config.trainer, config.trainer.max_tokens_per_microbatch
    packing = packed_once if recorded.shares_prefixes else packed_separately
    passes: list[tuple[int, int, float]] = []
    forward: list[tuple[int, int, float]] = []
    for step, groups in recorded.batches.items():
        batch = [Group(g[0].group_id, g[0].task_id, g) for g in groups if g]
        shards = shards_of(batch, step=step, algo=config.algo, trainer=trainer)
        rounds = rounds_of(proximal_rows(shards, config.algo), budget, packing=packing)
        forward.append((len(rounds), sum(rounds), _seconds_of(recorded.phases[step], "proximal")))
        expected: list[tuple[int, int]] = []
        for parts in learning_passes(shards, trainer, config.algo):
            rounds = rounds_of(parts, budget, packing=packing)
            expected.append((len(rounds), sum(rounds)))
        took = [b - a for name, a, b in recorded.phases[step] if name == "forward_backward"]
        if len(took) == len(expected):
            passes += [(*e, s) for e, s in zip(expected, took, strict=True)]
    if not passes:
        raise ConfigError("the run has no batch that changed its weights: nothing to calibrate on")
    # The first batch includes one-time costs.
    each_s, token_s = _plane(passes[trainer.num_minibatches :] or passes)
    alike = sum(each_s * n + token_s * tokens for n, tokens, _ in forward[1:])
    # Batches of one minibatch have no such pass; its cost is then a guess.
    ratio = sum(seconds for _, _, seconds in forward[1:]) / alike if alike else 1 / 3
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
        shares_prefixes=recorded.shares_prefixes,
    )


def _plane(passes: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Fit the seconds of a micro-batch and of a token: a line through the passes' micro-batches."""
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
