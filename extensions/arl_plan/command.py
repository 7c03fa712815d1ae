"""The command `arl plan`: it finds rates, simulates the configured run, and tries others."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.config import (
    AlgoConfig,
    ClusterConfig,
    Config,
    ModelConfig,
    OwnEngineConfig,
    SandboxConfig,
    ServerEngineConfig,
    TrainerConfig,
    dump_toml,
    may_use_gpu,
)
from agentgym_rl.core import (
    AdapterKeys,
    ConfigError,
    EpisodeError,
    OtherModel,
    Task,
    adapter_of,
    num_parameters,
)
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.gym import EnvSpec, Services, running_services
from agentgym_rl.models import local_folder, model_folder, with_model_defaults
from agentgym_rl.rollout import env_spec, specimen, turns_of
from agentgym_rl.runtime import new_file
from agentgym_rl.storage.run_folder import shown

from .calibration import RecordedRun, calibrate, read_run, shapes_of
from .rates import GPUS, Gpu, HardwareRates, LengthRates, Rates, SandboxRates, load_rates, rates_of
from .report import memory_text, plot_plan, prediction_text, search_text
from .search import ShapesOf, Tried, search, settled
from .simulation import Prediction
from .trainer import ModelSize, TrainerMemory, shapes_in, trainer_memory


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of the command line other than the configuration."""

    run: Path | None = None
    rates: Path | None = None
    gpu: str = ""
    parameters: float = 0.0
    gpus: int | None = None
    cores: float | None = None
    searches: bool = True
    plot: Path | None = None
    write_rates: Path | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of planning."""

    prediction: Prediction
    tried: list[Tried]
    best: Tried | None
    rates: Rates
    calibration: dict[str, float] | None
    """The episodes/s of the run used for calibration, as measured and as simulated."""
    memory: TrainerMemory | None = None
    """The memory of the trainer; None: its model is not known here."""
    gpu: Gpu | None = None
    """The GPU of each rank, if it is known, and the memory is not that of CPUs."""

    def json(self) -> dict[str, Any]:
        prediction, best = self.prediction, self.best
        return {
            "prediction": {**prediction.numbers(), "notes": list(prediction.notes)},
            "calibration": self.calibration,
            "trainer_memory_bytes": self.memory
            and {**asdict(self.memory), "rank": self.memory.rank},
            "tried": [
                {"axis": t.axis, **t.changes, **t.prediction.numbers(), "recommended": t is best}
                for t in self.tried
            ],
            "recommended": best.changes if best else None,
            "rates": self.rates.model_dump(),
        }

    def text(self) -> str:
        parts = ["The run as configured:", prediction_text(self.prediction)]
        parts += ["", memory_text(self.memory, gpu=self.gpu)]
        if self.calibration:
            measured, simulated = self.calibration["measured"], self.calibration["simulated"]
            parts.insert(
                0,
                f"Calibrated on {shown(Path(self.rates.calibrated_on))}:\n"
                f"  {measured:.3g} episodes/s as it ran, {simulated:.3g} as simulated "
                f"({simulated / measured - 1:+.1%})\n",
            )
        if self.best is not None:
            parts += ["", search_text(self.tried, self.best)]
        return "\n".join(parts)


def _check_apart(cluster: ClusterConfig, where: str) -> None:
    if cluster.shares_devices:
        raise ConfigError(
            f"{where}arl plan simulates engines and trainer ranks on devices of their own, and "
            "with cluster.colocated they take turns; plan with cluster.colocated=false, '+' in "
            "cluster.allocation"
        )


def plan(
    config: Config,
    options: PlanOptions,
    *,
    say: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Planned:
    """Make a plan of `config` and write the requested files. `say` gets the progress; `warn` gets
    messages that are printed with --json, too.

    Raises:
        ConfigError: rates are missing, contradict each other, or cannot be measured; or engines
            and ranks share devices.
    """
    _check_apart(config.cluster, "")
    rates, recorded, calibration = _calibrated(options, _rates(config.own_engine, options), say)
    given = rates.model_fields_set
    turns = measured = None
    if options.run is None:
        with contextlib.suppress(ConfigError):  # an environment of another machine
            turns = asyncio.run(turns_of(config.env, config.agent, config.rollout))
            if rates.lengths_of == "drawn" and "sandboxes" not in given:
                spec = env_spec(config.env, config.rollout)
                services = config.sandbox, config.verifier_options
                measured = asyncio.run(_sandboxes(spec, *services, seed=config.seed, warn=warn))
    if rates.engine.step_s + rates.engine.step_s_per_request <= 0:
        _measurable(config.own_engine)
        from agentgym_rl.trainer import make_stepper  # torch, only needed here

        from .probe import Probe, probed

        folder = model_folder(config.model, config.env.id)
        config = with_model_defaults(config, folder, turns=turns, say=warn)
        make = partial(make_stepper, config, model_dir=folder)
        engine = _measurable(config.own_engine)
        found = probed(Probe(folder, engine, config.trainer, make, warn))
        lengths = LengthRates(
            reply_tokens=config.rollout.max_tokens / 2, turns=(1 + (turns or 1)) / 2
        )
        found = found.model_copy(update={"lengths": lengths})
        rates = found.model_copy(update=_given(rates, found))
    elif folder := local_folder(config.model, config.env.id):
        # A model of the hub is fetched only to be measured.
        config = with_model_defaults(config, folder, turns=turns, say=warn)
    models = Models.of(config.algo, folder)
    memory = models.memory(
        config.trainer,
        adapter_of(config),
        dtype=config.compute_dtype,
        parameters=rates.hardware.parameters,
    )
    update = {"teacher_passes": rates.trainer.teacher_passes or models.teacher_passes}
    rates = rates.model_copy(update={"trainer": rates.trainer.model_copy(update=update)})
    if measured is not None:
        rates = measured.added_to(rates, with_lengths="lengths" not in given)
    gpu = None if config.trainer.cpu_offload else GPUS.get(rates.hardware.gpu)
    fewest = math.ceil(memory.rank * memory.ranks / (gpu.gb * 1e9)) if memory and gpu else 1
    found = _planned(
        partial(settled, config), rates, recorded, calibration, options, say, fewest_ranks=fewest
    )
    return replace(found, memory=memory, gpu=gpu)


@dataclass(frozen=True, slots=True)
class Models:
    """The folders of the models that trainer ranks load; None: not on this machine."""

    policy: Path | None
    others: Sequence[tuple[OtherModel, Path | None]]
    has_critic: bool = False
    shapes_of: Callable[[Path], tuple[Shapes, int]] = shapes_in
    """A function that returns the shapes and the vocabulary of the model in a folder."""

    @classmethod
    def of(
        cls,
        algo: AlgoConfig,
        policy: Path | None,
        *,
        find: Callable[[str], Path | None] = lambda path: local_folder(ModelConfig(path=path), ""),
        shapes_of: Callable[[Path], tuple[Shapes, int]] = shapes_in,
    ) -> Models:
        """Return the models of an objective, in addition to the policy's folder; `find` returns the
        folders of the others by their names."""
        others = algo.other_models
        folders = [find(it.model) if it.model else policy for it in others]
        found = list(zip(others, folders, strict=True))
        return cls(policy, found, algo.baseline == "critic", shapes_of)

    @property
    def teacher_passes(self) -> float:
        """Return the passes of teachers, in passes of the policy."""
        own = num_parameters(self.policy) if self.policy else 0
        teachers = (folder for it, folder in self.others if it.role == "teacher")
        return sum(num_parameters(it) / own if it and own else 1.0 for it in teachers)

    def memory(
        self,
        trainer: TrainerConfig,
        adapter: AdapterKeys | None,
        *,
        dtype: str,
        parameters: float = 0.0,
    ) -> TrainerMemory | None:
        """Return the memory of the trainer; None if the policy's size is not known. A model of
        `parameters` that is not the one in the folder is taken to be all matrices; a teacher that
        is not on this machine is taken to have the policy's size."""
        shapes, vocabulary = self.shapes_of(self.policy) if self.policy else ({}, 0)
        own = ModelSize.of(shapes, vocabulary=vocabulary)
        if parameters and abs(own.total - parameters) > _SAME_SIZE * parameters:
            shapes, own = {}, ModelSize(*(3 * [int(parameters)]))
        if not own.total or (adapter is not None and not shapes):
            return None
        matrices = adapter and ModelSize.of(adapter.matrix_shapes(shapes, vocabulary=vocabulary))
        critic = ModelSize.of_critic(shapes, vocabulary=vocabulary) if shapes else own
        sizes = {folder: self._size(folder) for _, folder in self.others if folder}
        sizes |= {it: own for it in (self.policy, None)}
        moving = [folder for it, folder in self.others if it.moved_by]
        # The model that the run begins with may be the policy without its adapter.
        stay = [(it, folder) for it, folder in self.others if not it.moved_by]
        loaded = [folder for it, folder in stay if it.model or adapter is None]
        frozen = [*{it for it in loaded if it}, *(it for it in loaded if not it)]  # a folder once
        return trainer_memory(
            own,
            matrices,
            moving=sizes[moving[0]] if moving else None,
            frozen=[sizes[it] for it in frozen],
            trainer=trainer,
            dtype=dtype,
            critic=critic if self.has_critic else None,
        )

    def _size(self, folder: Path) -> ModelSize:
        shapes, vocabulary = self.shapes_of(folder)
        return ModelSize.of(shapes, vocabulary=vocabulary)


_SAME_SIZE = 0.05
"""The difference of --parameters from the model's folder at which it is another model."""


@dataclass(frozen=True, slots=True)
class _Sandboxes:
    """The sandboxes of an environment as measured on solutions of its tasks."""

    rates: SandboxRates
    turns: int
    tool_s: float

    def added_to(self, rates: Rates, *, with_lengths: bool) -> Rates:
        """Return rates with those of sandboxes, and turns and tools in the lengths if wanted."""
        update: dict[str, Any] = {"sandboxes": self.rates}
        if with_lengths:
            found = {"turns": float(self.turns), "tool_s": self.tool_s}
            update["lengths"] = rates.lengths.model_copy(update=found)
        return rates.model_copy(update=update)


_NUM_SOLUTIONS = 3
"""The number of solutions that are measured, after one that fills caches."""


async def _sandboxes(
    spec: EnvSpec,
    sandbox: SandboxConfig,
    verifier: Mapping[str, Any],
    *,
    seed: int,
    warn: Callable[[str], None],
) -> _Sandboxes | None:
    """Measure the sandboxes of an environment whose episodes hold one; None if they hold none, or
    if sandboxes cannot be measured here (`warn` then gets the reason).

    Raises:
        ConfigError: the environment is not on this machine.
    """
    env = await specimen(spec)
    if not env.holds_sandboxes:
        return None
    warn(f"measuring the sandboxes of {spec.id} on {_NUM_SOLUTIONS} solutions")
    tasks = await spec.read_tasks("train", seed=seed)
    try:
        async with running_services(env, sandbox, verifier) as given:
            found = [await _solved(spec, tasks[i], given) for i in range(1 + _NUM_SOLUTIONS)][1:]
            at_once = given.sandboxes.at_once if given.sandboxes else 0
    except (EpisodeError, ConfigError) as error:
        warn(f"the sandboxes are left out of the plan: {error}")
        return None
    start_s, tool_s, verify_s, turns, memory_mb = map(statistics.median, zip(*found, strict=True))
    rates = SandboxRates(
        at_once=at_once,
        start_s=start_s,
        verify_s=verify_s,
        memory_mb=int(memory_mb),
        machine_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
    )
    return _Sandboxes(rates, int(turns), tool_s)


async def _solved(
    spec: EnvSpec, task: Task, given: Services
) -> tuple[float, float, float, int, int]:
    """Play the solution of a task. Return the seconds of a sandbox's start, of a tool call and of
    the tests; the number of replies, and the megabytes that a sandbox may take."""
    clock = time.perf_counter
    env = spec.make()
    try:
        await env.reset(seed=task.seed, options={"task": task, **given.options(env)})
        times_s = [clock()]
        sandbox = await env.open_sandbox()
        times_s.append(clock())
        messages = env.solve()
        if not messages:
            raise ConfigError(f"{spec.id}: task {task.id} has no solution to be measured")
        for message in messages:
            await env.step(message)
            times_s.append(clock())
    finally:
        await env.close()
    start_s, *tools_s, tests_s = (after - before for before, after in pairwise(times_s))
    tool_s = sum(tools_s) / len(tools_s) if tools_s else 0.0
    verify_s = max(tests_s - start_s, 0.0)  # in a sandbox of their own
    return start_s, tool_s, verify_s, len(messages), sandbox.limits.memory_mb


def _calibrated(
    options: PlanOptions, rates: Rates, say: Callable[[str], None]
) -> tuple[Rates, RecordedRun | None, dict[str, float] | None]:
    """Return the rates with those of a recorded run, if one is given; the run; and its episodes/s,
    as measured and as simulated."""
    if options.run is None and rates.lengths_of != "run":
        return rates, None, None
    folder = options.run or Path(rates.calibrated_on)
    recorded = read_run(folder)
    _check_apart(recorded.config.cluster, f"{folder}: ")
    if options.run is None:
        return rates, recorded, None
    say(f"calibrating on {folder}")
    rates, simulated = calibrate(folder, recorded, rates)
    speeds = {"measured": recorded.episodes_per_s, "simulated": simulated.episodes_per_s}
    return rates, recorded, speeds


def _measurable(engine: OwnEngineConfig) -> EmbeddedEngineConfig:
    """Return an engine that can be measured on this machine's CPU.

    Raises:
        ConfigError: the run would not compute on this CPU.
    """
    if not isinstance(engine, EmbeddedEngineConfig) or may_use_gpu(engine.device):
        raise ConfigError(
            "the speed of engines is not known: give --run RUN to measure it on a run, --gpu NAME "
            "--parameters N for a model on a known GPU, or --rates FILE with [engine] step_s; the "
            "embedded engine on a CPU (--engine.device=cpu) is measured without any of them"
        )
    return engine


def _planned(
    settle: Callable[[Rates, ShapesOf], Tried],
    rates: Rates,
    recorded: RecordedRun | None,
    calibration: dict[str, float] | None,
    options: PlanOptions,
    say: Callable[[str], None],
    *,
    fewest_ranks: int,
) -> Planned:
    """Simulate, search, and write the requested files."""
    say("simulating the run as configured")
    shapes = partial(shapes_of, lengths=rates.lengths, recorded=recorded)
    first = settle(rates, shapes)
    prediction = first.prediction
    tried: list[Tried] = []
    best = None
    if options.searches:
        say("trying others")
        tried, best = search(first, rates, shapes, gpus=options.gpus, fewest_ranks=fewest_ranks)
    if options.plot is not None:
        plot_plan(options.plot, prediction, tried, best)
    if options.write_rates is not None:
        with new_file(options.write_rates, argument=f"--write-rates {options.write_rates}") as file:
            file.write(dump_toml(rates))
    return Planned(prediction, tried, best, rates, calibration)


def _rates(engine: OwnEngineConfig, options: PlanOptions) -> Rates:
    rates = load_rates(options.rates) if options.rates is not None else Rates()
    hardware = rates.hardware.model_dump()
    hardware["gpu"] = (options.gpu or hardware["gpu"]).upper()
    hardware["parameters"] = options.parameters or hardware["parameters"]
    if options.run is not None and options.gpu:
        raise ConfigError("--run measures rates and --gpu estimates them: give one of them")
    if hardware["gpu"]:
        parallel = engine.tensor_parallel_size if isinstance(engine, ServerEngineConfig) else 1
        stages = engine.gpus_per_server // parallel
        estimated = rates_of(HardwareRates(**hardware), tensor_parallel=parallel, stages=stages)
        rates = estimated.model_copy(update=_given(rates, estimated))
    if options.cores is not None:
        rates = rates.model_copy(update={"cores": options.cores})
    return rates


def _given(rates: Rates, estimated: Rates) -> dict[str, Any]:
    """Return the values that the rates file gives itself, which replace the estimated ones."""
    found: dict[str, Any] = {}
    for name in rates.model_fields_set - {"hardware"}:
        value = getattr(rates, name)
        if name in ("engine", "trainer", "weights", "rollout"):
            said = {key: getattr(value, key) for key in value.model_fields_set}
            value = getattr(estimated, name).model_copy(update=said)
        found[name] = value
    return found
