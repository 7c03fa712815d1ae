"""The keys of rollout workers, of an adapted number of groups, of clusters of several machines and
of shared devices, which this extension adds to `rollout` and `cluster`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from agentgym_rl.core import (
    Anytime,
    OnResume,
    PlaceKeys,
    PlayKeys,
    Section,
    Sections,
    SleepLevel,
    flat,
    only_here,
)

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import Config, RolloutConfig


class WorkerKeys(PlayKeys):
    """The processes that play beside that of the run."""

    workers: Anytime[int] = Field(default=0, ge=0)
    """The number of processes that play episodes, each with its own gateway, environments and
    sandboxes; 0: `arl train` itself plays them."""
    worker_cpus: Anytime[int] = Field(default=1, ge=1)
    """The CPUs of each worker with its environments and sandboxes: the threads that libraries like
    numpy may take, and the CPUs that a cluster reserves."""
    max_restarts: Anytime[int] = Field(default=3, ge=0)
    """The maximum number of restarts of each lost worker, which count anew once it has run for an
    hour; the last worker to be lost for good ends the run."""

    @property
    def player_processes(self) -> tuple[int, int]:
        return self.workers, self.worker_cpus

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        from agentgym_rl.config import AgentConfig, EnvConfig, SandboxConfig

        named: dict[str, object] = {
            "env": config.of(EnvConfig).model_dump(),
            "agent": config.of(AgentConfig).model_dump(),
            "sandbox": config.of(SandboxConfig).model_dump(),
        }
        keep = "leave rollout.workers out, so that this process plays"
        for key, value in flat(named).items() if self.workers else ():
            for path in re.findall(r"__main__:[\w.]+", str(value)):
                yield f"{key}: {only_here(path, 'each worker', instead=keep)}"

    def refused_for_clients(self) -> Iterator[str]:
        if self.workers:
            yield (
                "rollout.workers: `arl serve` plays no episodes, so it has no rollout workers; "
                "leave the key out (several programs may open sessions at its one gateway)"
            )
        yield from super().refused_for_clients()


class ConcurrencyKeys(PlayKeys):
    """The number of concurrent groups, if it is adapted to engines and trainer."""

    after = "max_concurrent"

    concurrency: OnResume[Literal["fixed", "adaptive"]] = "fixed"
    """The number of concurrent groups: `max_concurrent`, or adapted to engines and trainer."""
    start_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The initial number of concurrent groups with `adaptive` (default 2·B, or the maximum)."""
    min_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The minimum number of concurrent groups with `adaptive` (default 1)."""

    @property
    def adapts(self) -> bool:
        """Return whether the number is adapted."""
        return self.concurrency == "adaptive"

    @property
    def admitted_groups(self) -> int:
        if not self.adapts:
            return super().admitted_groups
        batch = cast("RolloutConfig", self).groups_per_batch
        usual = max(min(2 * batch, self.most_groups), self.min_concurrent or 1)
        return self.start_concurrent or usual

    @property
    def most_groups(self) -> int:
        if not self.adapts:
            return super().most_groups
        return min(cast("RolloutConfig", self).max_concurrent or self._bound, self._bound)

    @property
    def _bound(self) -> int:
        """Return the number that the bound on staleness admits."""
        rollout = cast("RolloutConfig", self)
        return (rollout.target_staleness + 1) * rollout.groups_per_batch

    @model_validator(mode="after")
    def _check_concurrency(self) -> Self:
        if not self.adapts:
            for key in ("start_concurrent", "min_concurrent"):
                if (value := getattr(self, key)) is not None:
                    raise ValueError(
                        f"{key} {value} is only for concurrency 'adaptive'; with 'fixed', "
                        "max_concurrent groups are played at once"
                    )
            return self
        least, first, most = self.min_concurrent or 1, self.admitted_groups, self.most_groups
        if not least <= first <= most:
            raise ValueError(
                f"concurrency 'adaptive' begins with {first} groups at once (start_concurrent), "
                f"and may have {least} (min_concurrent) to {most}, the smaller of "
                f"max_concurrent and (lookahead + 1)·groups_per_batch = {self._bound}"
            )
        return self


class NodeKeys(Section):
    """The nodes of a cluster, and the job that starts one."""

    after = "type"

    address: str = "auto"
    """The address of the Ray cluster, HOST:PORT; `auto`: the cluster of this machine."""
    nodes: int = Field(default=1, ge=1)
    """The number of nodes that Ray needs before the run begins; the nodes of the Slurm job."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """The longest wait for those nodes, for room on them, and for the start of a Ray process."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """The Ray runtime environment of the processes: `env_vars` for all of them, `py_modules` with
    the wheel of this package if nodes do not have it."""
    gpus_per_node: int = Field(default=0, ge=0)
    """The number of GPUs to request from Slurm on each node."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch, as in ["--partition=gpu", "--time=8:00:00"]."""


def _settings(text: str) -> Mapping[str, Any]:
    from .allocation import settings

    return settings(text)


class ShareKeys(PlaceKeys):
    """The devices that engines and trainer ranks share, and their allocation in one line."""

    after = "type"
    stands_for: ClassVar[Mapping[str, Callable[[str], Mapping[str, Any]]]] = {
        "allocation": _settings
    }

    colocated: bool = False
    """The sharing of devices: engines sleep while ranks train, and ranks keep their state in CPU
    memory while engines sample. Experimental on GPUs: never run."""
    sleep_level: SleepLevel = 1
    """The level of engine sleep: 1 keeps the weights in CPU memory; 2 discards them, since the
    engine gets new ones before it samples again."""
    allocation: str = ""
    """The engines and ranks in one line: `vllm:d4t2+fsdp:d8` are four vLLM servers of two GPUs each
    and eight trainer ranks; `vllm:d2|fsdp:d2` share two GPUs (`sglang` has no such form). Sets
    engine.type, engine.num_servers, the sizes of an engine's parts (t, p, e), trainer.num_ranks and
    `colocated` (see arl_scale/allocation.py)."""

    @property
    def shares_devices(self) -> bool:
        return self.colocated or super().shares_devices

    def notes(self) -> Iterator[str]:
        yield from super().notes()
        if self.colocated:
            yield f"on the same devices: engines sleep (level {self.sleep_level}) while ranks train"

    def conflicts(self, config: Config) -> Iterator[str]:
        if self.colocated and (problems := [*_cannot_share(config), *_beside_sleepers(config)]):
            yield f"cluster.colocated: {'; '.join(problems)}"


def _cannot_share(config: Config) -> Iterator[str]:
    """Yield the reasons why the engines cannot share devices with trainer ranks."""
    from agentgym_rl.config import OwnEngineConfig

    engine, trainer, cluster = config.engine, config.trainer, config.cluster
    if engine.sleepless:
        yield engine.sleepless
    if not isinstance(engine, OwnEngineConfig):
        return
    if engine.attached:
        yield (
            "engine.urls names servers that the run does not start, which it can neither "
            "place nor start again on the trainer's devices; leave it out"
        )
    if set(engine.chosen_gpus) != set(trainer.gpus):
        yield (
            f"engine.gpus {list(engine.chosen_gpus)} and trainer.gpus {list(trainer.gpus)} have to "
            "be the same, or both left out"
        )
    each = engine.gpus_per_server
    devices = engine.num_servers * each
    if devices != trainer.num_ranks:
        yield (
            f"engines and ranks on the same devices need as many: engine.num_servers "
            f"{engine.num_servers} x {each} = {devices}, trainer.num_ranks {trainer.num_ranks}"
        )
    if cluster.kind.gives_out_devices and each > 1:
        yield (
            f"cluster.type {cluster.type!r} gives out parts of a GPU, not of several: "
            f"an engine has to have one (t1, p1), got {each}"
        )


def _beside_sleepers(config: Config) -> Iterator[str]:
    """Yield an error for each part of a configuration that cannot work with engines that sleep."""
    transport = config.weights.transport
    if transport not in ("shm", "gloo"):
        yield (
            f"weights.transport {transport!r} writes into weights that are served, "
            "and a sleeper's are not there; use shm or gloo"
        )
    if config.eval.scheduled:
        yield (
            "eval.every and eval.every_minutes start one engine more, beside training, where the "
            "devices are the trainer's. Evaluate checkpoints instead: trainer.checkpoint_every, "
            "and arl eval --checkpoint"
        )
