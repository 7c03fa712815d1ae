"""What the processes of a run need, and whether the nodes of a cluster have it.

Cluster schedulers leave a run that does not fit waiting without end. So everything is asked here
before anything starts, process by process: that the sum is there is not enough, since a process
has to find all it needs on one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentgym_rl.config import Config, VllmEngineConfig
from agentgym_rl.core.errors import ConfigError


@dataclass(frozen=True)
class Demand:
    """`count` alike processes, and what each needs; or places, that each share with a guest."""

    role: str
    count: int
    cpus: int
    gpus: int = 0
    guest: str = ""
    """Role of as many processes that take turns with these on the same GPUs."""
    guest_cpus: int = 0
    """Of `cpus`, those of the guest."""

    @property
    def name(self) -> str:
        """Who it is for."""
        return f"{self.role} + {self.guest}" if self.guest else self.role

    def share(self, role: str) -> tuple[int, float]:
        """CPUs and GPUs of one of its processes; of two that share a GPU each is given a half."""
        cpus = self.guest_cpus if role == self.guest else self.cpus - self.guest_cpus
        return cpus, self.gpus / 2 if self.guest else self.gpus


@dataclass(frozen=True)
class Node:
    """A machine, and what of it is free."""

    name: str
    cpus: float
    gpus: float = 0


def demands(config: Config, *, gpus: bool) -> list[Demand]:
    """The processes of a run that has its engines started. `gpus`: whether there are any, which
    decides what device "auto" is."""
    engine, trainer = config.own_engine, config.trainer
    found: list[Demand] = []
    if isinstance(engine, VllmEngineConfig):
        if not engine.urls:
            size = engine.tensor_parallel_size if gpus else 0
            found.append(Demand("engine", engine.num_servers, engine.num_threads, size))
    else:
        size = int(_on_gpu(engine.device, gpus))
        found.append(Demand("engine", engine.num_servers, engine.num_threads, size))
    size = int(_on_gpu(trainer.device, gpus))
    if config.cluster.colocated:
        found = [_shared(it, trainer.num_threads, size) for it in found]
    else:
        found.append(Demand("trainer", trainer.num_ranks, trainer.num_threads, size))
    if config.rollout.workers:
        found.append(Demand("rollout", config.rollout.workers, config.rollout.worker_cpus))
    return found


def _shared(engine: Demand, rank_cpus: int, rank_gpus: int) -> Demand:
    """Places for a server and the ranks on its GPUs, as many as it has: these count once."""
    each = max(engine.gpus, 1)
    return Demand(
        "engine",
        engine.count,
        engine.cpus + each * rank_cpus,
        max(engine.gpus, rank_gpus),
        guest="trainer",
        guest_cpus=each * rank_cpus,
    )


def _on_gpu(device: str, gpus: bool) -> bool:
    return device == "cuda" or (device == "auto" and gpus)


@dataclass(frozen=True)
class Line:
    """Of the table: a resource, what is asked of it, what there is, and what is missing."""

    resource: str
    asked: float
    there: float

    @property
    def missing(self) -> float:
        return max(0.0, self.asked - self.there)


def totals(asked: Iterable[Demand], nodes: Iterable[Node]) -> list[Line]:
    """Of all processes, and of all nodes."""
    asked, nodes = list(asked), list(nodes)
    return [
        Line("CPU", sum(it.count * it.cpus for it in asked), sum(node.cpus for node in nodes)),
        Line("GPU", sum(it.count * it.gpus for it in asked), sum(node.gpus for node in nodes)),
    ]


def check(asked: Sequence[Demand], nodes: Sequence[Node]) -> dict[str, list[str]]:
    """The processes of each node, by its name, in a placement that works; Ray finds its own.

    The largest processes are placed first, each on the first node that has room for it.

    Raises:
        ConfigError: there is none; with a table of what was asked, what there is, and what is
            missing, and the first process that found no place.
    """
    free = {node.name: [node.cpus, node.gpus] for node in nodes}
    placed: dict[str, list[str]] = {node.name: [] for node in nodes}
    for demand in sorted(asked, key=lambda it: (-it.gpus, -it.cpus)):
        for index in range(demand.count):
            room = next(
                (
                    name
                    for name, (cpus, gpus) in free.items()
                    if cpus >= demand.cpus and gpus >= demand.gpus
                ),
                None,
            )
            if room is None:
                raise ConfigError(_refusal(asked, nodes, demand, index))
            free[room][0] -= demand.cpus
            free[room][1] -= demand.gpus
            placed[room].append(f"{demand.role}-{index}")
            if demand.guest:
                placed[room].append(f"{demand.guest}-{index}")
    return placed


def table(asked: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """What each kind of process needs, what each node has, and the sums; 80 columns."""
    lines = [f"{'asked':<36}{'CPU':>8}{'GPU':>8}"]
    lines += [
        f"  {f'{it.count} x {it.name} of {it.cpus} CPU, {it.gpus} GPU':<34}"
        f"{it.count * it.cpus:>8}{it.count * it.gpus:>8}"
        for it in asked
    ]
    lines += [f"{'there':<36}{'CPU':>8}{'GPU':>8}"]
    lines += [f"  {node.name:<34.34}{node.cpus:>8g}{node.gpus:>8g}" for node in nodes]
    cpu, gpu = totals(asked, nodes)
    lines += [f"{'missing':<36}{cpu.missing:>8g}{gpu.missing:>8g}"]
    return "\n".join(lines)


def _refusal(asked: Sequence[Demand], nodes: Sequence[Node], homeless: Demand, index: int) -> str:
    one = f"{homeless.cpus} CPU, {homeless.gpus} GPU"
    widest = max(nodes, key=lambda node: (node.gpus, node.cpus), default=None)
    if any(line.missing for line in totals(asked, nodes)):
        why = "the cluster is too small"
    elif widest and (widest.gpus < homeless.gpus or widest.cpus < homeless.cpus):
        why = f"no node is so large: {widest.name} has {widest.cpus:g} CPU, {widest.gpus:g} GPU"
    else:
        why = "there is enough in all, but on no single node beside the others"
    return (
        f"{homeless.role}-{index} ({one}) finds no place: {why}. Ask for less "
        "(cluster.allocation, or the keys it stands for), or add nodes.\n"
        f"{table(asked, nodes)}"
    )
