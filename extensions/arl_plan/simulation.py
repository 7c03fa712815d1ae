"""The simulation of a run in virtual time: the real rollout, buffer and controller, with simulated
engines, trainer and episodes around them; and its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from arl_scale.concurrency import METRIC, adapt

from agentgym_rl.config import AlgoConfig, Config, RolloutConfig
from agentgym_rl.controller import Buffer, Controller, Plan
from agentgym_rl.core import ConfigError, Group, StepReport, Task, TaskSource, Trajectory
from agentgym_rl.core.errors import leaves
from agentgym_rl.gym import SandboxStats
from agentgym_rl.rollout import LocalProducer, OpenGroups, Player, TaskCursor
from agentgym_rl.run import Loop
from agentgym_rl.storage import COMPUTE_PHASES, EpisodeLog, MetricsFile, PhasesFile, StepPhases

from .clock import Cores, Process, run_virtual
from .engine import SimulatedEngine, SimulatedFleet, State
from .episodes import Shapes, SimulatedPlayer, SimulatedSandboxes
from .rates import Rates
from .trainer import SimulatedTrainer, Step, not_simulated, packed_once, packed_separately

_LONG_LINE = 0.1
"""The share of an episode's time in line for sandboxes that is worth a note."""
_MANY_PER_CORE = 2
"""The sandboxes per processor up to which programs wait for files and starts of others as much as
for processors."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The means over all batches after the first `skipped` ones, in which a run starts up."""

    episodes_per_s: float
    """The trained episodes per second."""
    trained_tokens_per_s: float
    generated_tokens_per_s: float
    step_s: float
    """The seconds from one report of the trainer to the next."""
    staleness_mean: float
    """The mean staleness of the groups of a batch, in versions."""
    staleness_max: float
    """The largest staleness over the complete run."""
    dropped_groups: int
    """The groups dropped as too old, over the complete run."""
    versions_per_episode: float
    trainer_idle: float
    """The share of the time in which the trainer waited for a batch."""
    engine_idle: float
    """The share of the time in which an engine had nothing to sample."""
    engine_prefill: float
    engine_paused: float
    """The share of pauses for new weights; `engine_prefill` is that of prefills."""
    requests_per_engine: float
    """The mean number of requests sampled together."""
    rollout_busy: float
    """The share of the time in which the rollout's process computed."""
    overlap: float
    """The share of tokens sampled while the trainer computed."""
    turn_s: float
    """The mean seconds from the last token of a turn to the last one of the next, over the complete
    run; 0 if episodes have one turn."""
    compute_s: float
    """The seconds of a batch in which the trainer computed."""
    weight_sync_s: float
    micro_batches: float
    """The micro-batches of one rank and batch, all passes together."""
    preemptions: int
    episode_s: float
    """The mean time of an episode over the complete run, and of it: `in_line_s` waiting for
    sandboxes, `sandbox_start_s` starting them, `tools_s` and `tests_s` in them; 0 without any."""
    in_line_s: float
    sandbox_start_s: float
    tools_s: float
    tests_s: float
    max_concurrent: float
    """The limit on groups played at once; its mean if it is adapted."""
    skipped: int
    steps: Sequence[Step] = field(repr=False, default=())
    notes: Sequence[str] = ()
    """The limits of the configuration that the run would exceed."""

    def numbers(self) -> Mapping[str, float]:
        """Return all numbers by name."""
        return {
            name: getattr(self, name) for name in self.__slots__ if name not in ("steps", "notes")
        }


def _without_metrics(algo: AlgoConfig) -> AlgoConfig:
    """Return `algo` without the keys that depend on metrics of episodes, which simulated episodes
    lack."""
    return algo.simulated().model_copy(update={"leave_out": []})


def simulate(
    config: Config,
    rates: Rates,
    shapes: Shapes,
    *,
    skip: int = 1,
    batches: int | None = None,
) -> Prediction:
    """Predict a run of `config`; the means leave out its first `skip` batches.

    `batches`: the number of batches after which the simulation stops, though the run would go on;
    None: it covers the complete run, which plays no new groups near its end.

    Raises:
        ConfigError: the configuration has a feature that is not modelled, or is invalid.
        TimeoutError: a wait of the run would exceed its timeout.
    """
    if config.algo.baseline == "critic":
        raise ConfigError(
            "arl plan does not model critics: got algo.baseline 'critic'; plan with 'mean', and "
            "add a pass of the critic's size to the trainer's rates"
        )
    if config.steps < 2:
        raise ConfigError(f"steps {config.steps}: a plan needs 2 batches or more")
    batches = config.steps if batches is None else min(batches, config.steps)
    run = _Run(config, rates, shapes)
    return run_virtual(run.predict(min(skip, batches - 1), batches))


@dataclass(frozen=True, slots=True)
class _Mark:
    """The counters at one moment."""

    now_s: float
    seconds: Mapping[State, float]
    request_s: float
    tokens: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class _Run:
    config: Config
    rates: Rates
    shapes: Shapes
    marks: list[_Mark] = field(default_factory=list["_Mark"])

    async def predict(self, skip: int, batches: int) -> Prediction:
        config, rates = self.config, self.rates
        cores = Cores(rates.cores)
        process, fleet = Process(cores), self._fleet(cores)
        sandboxes = SimulatedSandboxes(rates.sandboxes, cores) if rates.sandboxes.at_once else None
        player = SimulatedPlayer(
            self.shapes, fleet, process, turn_s=rates.rollout.turn_s, sandboxes=sandboxes
        )
        buffer = Buffer(config.rollout, total_groups=config.steps * config.rollout.groups_per_batch)
        loop = asyncio.get_running_loop()

        trainer = SimulatedTrainer(
            config.trainer,
            config.algo,
            rates,
            fleet,
            cores,
            process,
            packing=packed_once if rates.trainer.shares_prefixes else packed_separately,
            batches=batches,
        )

        def recorded(step: int, metrics: Mapping[str, float]) -> None:
            now = (loop.time(), fleet.seconds, fleet.request_s)
            self.marks.append(_Mark(*now, fleet.count_tokens(), process.busy_s))
            trainer.reported()

        controller = Controller(
            config.trainer,
            _without_metrics(config.algo),
            buffer,
            _NoLog(),
            _NoMetrics(),
            _NoPhases(),
            plan=Plan(config.trainer, config.eval, steps=config.steps),
            publications=trainer,
            on_step=recorded,
        )
        rollout = LocalProducer(
            config.rollout,
            # Simulated groups have no judge.
            OpenGroups(config.rollout.model_copy(update={"group_reward": None}), buffer, _NoLog()),
            TaskCursor(
                # all simulated tasks are alike
                config.rollout.model_copy(update={"curriculum": ""}),
                _NoTasks(),
                seed=config.seed,
                numbers=controller.rollout_metrics,
            ),
            cast(Player, player),
            seed=config.seed,
        )
        await _until_trained(
            rollout,
            trainer,
            Loop(controller, trainer),
            adapt(
                config.rollout,
                buffer,
                controller,
                fleet,
                (lambda: sandboxes.stats) if sandboxes else SandboxStats,
            ),
        )
        return self._summary(skip, controller, fleet, trainer, player)

    def _fleet(self, cores: Cores) -> SimulatedFleet:
        config, rates = self.config, self.rates.engine
        engine = config.own_engine
        return SimulatedFleet(
            [
                SimulatedEngine(
                    f"engine-{index}",
                    rates,
                    cores,
                    slots=engine.max_num_seqs,
                    demand=engine.num_threads + rates.server_cores,
                )
                for index in range(engine.num_servers)
            ],
            interrupt=config.rollout.interrupt,
            at_once=config.weights.transport in ("nccl", "ipc"),
            prefix_cache=rates.prefix_cache,
        )

    def _summary(
        self,
        skip: int,
        controller: Controller,
        fleet: SimulatedFleet,
        trainer: SimulatedTrainer,
        player: SimulatedPlayer,
    ) -> Prediction:
        config = self.config
        # The interval lies between two reports; without `skip`, it begins at the start.
        nothing = _Mark(0.0, {}, 0.0, 0.0, 0.0)
        first = self.marks[skip - 1] if skip else nothing
        last = self.marks[-1]
        seconds = max(last.now_s - first.now_s, 1e-12)
        steps = trainer.steps[skip:]
        history = controller.history
        engine_s = seconds * config.own_engine.num_servers
        spent: dict[State, float] = {
            state: (last.seconds[state] - first.seconds.get(state, 0.0)) / engine_s
            for state in ("idle", "prefill", "paused")
        }
        rollout = config.rollout
        generated = last.tokens - first.tokens
        return Prediction(
            episodes_per_s=len(steps) * rollout.groups_per_batch * rollout.group_size / seconds,
            trained_tokens_per_s=sum(step.trained_tokens for step in steps) / seconds,
            generated_tokens_per_s=generated / seconds,
            step_s=seconds / len(steps),
            staleness_mean=_mean([m["staleness/mean"] for m in history[skip:]]),
            staleness_max=max(m["staleness/max"] for m in history),
            dropped_groups=int(history[-1]["staleness/dropped"]),
            versions_per_episode=_mean([m["versions_per_episode"] for m in history[skip:]]),
            trainer_idle=sum(step.seconds("rollout_wait") for step in steps) / seconds,
            engine_idle=spent["idle"],
            engine_prefill=spent["prefill"],
            engine_paused=spent["paused"],
            requests_per_engine=(last.request_s - first.request_s) / engine_s,
            rollout_busy=(last.busy_s - first.busy_s) / seconds,
            overlap=sum(step.overlapped_tokens for step in steps) / max(generated, 1.0),
            turn_s=_mean(player.turns),
            compute_s=_mean([step.seconds(*COMPUTE_PHASES) for step in steps]),
            weight_sync_s=_mean([step.seconds("weight_sync") for step in steps]),
            micro_batches=_mean([step.micro_batches for step in steps]),
            preemptions=fleet.preemptions,
            episode_s=_spent(player, "all"),
            in_line_s=_spent(player, "in line"),
            sandbox_start_s=_spent(player, "start"),
            tools_s=_spent(player, "tools"),
            tests_s=_spent(player, "tests"),
            max_concurrent=_mean(
                [m.get(METRIC, config.rollout.admitted_groups) for m in history[skip:]]
            ),
            skipped=skip,
            steps=trainer.steps,
            notes=self._notes(trainer, player),
        )

    def _notes(self, trainer: SimulatedTrainer, player: SimulatedPlayer) -> list[str]:
        """Return a note for each key that is not simulated, and each timeout that the run would
        exceed."""
        config, steps = self.config, trainer.steps
        limits = {
            "rollout.episode_timeout_s": config.rollout.episode_timeout_s or math.inf,
            "weights.update_timeout_s": config.weights.update_timeout_s,
        }
        longest = {
            "episode": player.longest_episode_s,
            "publication of weights": max(s.seconds("weight_sync") for s in steps),
        }
        absent = [
            f"{name} is not simulated: {why}"
            for name, why in not_simulated(config.algo, config.rollout)
        ]
        return (
            absent
            + _sandbox_notes(config.rollout, self.rates, player)
            + [
                f"the longest {what} takes {found:.0f} s, more than {key} {limit:g}: raise it"
                for (key, limit), (what, found) in zip(limits.items(), longest.items(), strict=True)
                if found > limit
            ]
        )


async def _until_trained(
    rollout: LocalProducer,
    trainer: SimulatedTrainer,
    training: Loop,
    adapting: Coroutine[Any, Any, None],
) -> None:
    """Run rollout, training and the adaptation of concurrency until the batches are trained.

    Raises:
        ConfigError, TimeoutError: for the same reasons as the run itself.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(training.run(), name="training loop"),
                tasks.create_task(rollout.run(), name="rollout"),
                tasks.create_task(adapting, name="concurrency"),
            ]
            await trainer.done.wait()
            for task in others:
                task.cancel()
    except BaseExceptionGroup as group:
        raise leaves(group)[0] from None


def _sandbox_notes(rollout: RolloutConfig, rates: Rates, player: SimulatedPlayer) -> list[str]:
    """Return a note for each resource of which sandboxes would need more than the machine has."""
    places = rates.sandboxes
    if not places.at_once:
        return []
    notes: list[str] = []
    size, most = rollout.group_size, places.at_once
    asked = rollout.admitted_groups * size
    in_line_s, episode_s = _spent(player, "in line"), _spent(player, "all")
    if in_line_s > _LONG_LINE * episode_s:
        notes.append(
            f"{asked} episodes are played at once and {most} have a sandbox: they stand in line "
            f"for {in_line_s / episode_s:.0%} of their time; rollout.max_concurrent="
            f"{1 + math.ceil(most / size)} keeps all sandboxes busy, and more of them "
            "(sandbox.options) help if processors are idle"
        )
    busy = most * places.cpu
    if rates.cores is not None and busy > _MANY_PER_CORE * rates.cores:
        notes.append(
            f"{most} sandboxes at once on {rates.cores:g} processors: a tool or test takes up to "
            f"{busy / rates.cores:.1f} times as long, and may miss its deadline"
        )
    if 0 < places.machine_mb < most * places.memory_mb:
        notes.append(
            f"{most} sandboxes of {places.memory_mb:,} MB need {most * places.memory_mb:,} MB if "
            f"all use their limit, and the machine has {places.machine_mb:,}: "
            f"{places.machine_mb // max(places.memory_mb, 1)} fit"
        )
    return notes


def _spent(player: SimulatedPlayer, what: str) -> float:
    """Return the seconds of a part, for each episode that has ended."""
    return player.spent_s[what] / max(player.played, 1)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class _NoTasks(TaskSource):
    """An endless source of tasks that consist of their number only."""

    def __getitem__(self, index: int, /) -> Task:
        return Task(id=str(index), seed=index)


class _NoLog(EpisodeLog):
    """A log that keeps nothing: simulated runs are not resumed."""

    def __init__(self) -> None:
        pass

    async def add_member(
        self, member: Trajectory, *, task: Task | None = None, task_index: int = -1
    ) -> None:
        pass

    async def add_group(
        self, task: Task, task_index: int, group: Group, *, dropped: str = ""
    ) -> None:
        pass

    async def publish(self, report: StepReport, metrics: Mapping[str, float | None]) -> None:
        pass

    async def checkpointed(self, step: int, folder: str) -> None:
        pass


class _NoMetrics(MetricsFile):
    """A metrics file that is not written: the controller has the history."""

    def __init__(self) -> None:
        pass

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        pass


class _NoPhases(PhasesFile):
    """A phases file that is not written: the simulated trainer keeps its own steps."""

    def __init__(self) -> None:
        pass

    def write(self, found: StepPhases) -> None:
        pass
