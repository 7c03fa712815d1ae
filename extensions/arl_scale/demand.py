"""The nodes of a cluster, and the check that they have room for the processes of a run.

Cluster schedulers let a run that does not fit wait forever. So all demands are checked here before
anything starts, process by process: a sufficient sum is not enough, since a process needs all its
resources on one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentgym_rl.cluster import Demand
from agentgym_rl.core import ConfigError


@dataclass(frozen=True)
class Node:
    """A machine and its free resources."""

    name: str
    cpus: float
    gpus: float = 0


@dataclass(frozen=True)
class Line:
    """A line of the table: a resource, the requested amount, the available amount and the lack."""

    resource: str
    requested: float
    there: float

    @property
    def missing(self) -> float:
        return max(0.0, self.requested - self.there)


def totals(demands: Iterable[Demand], nodes: Iterable[Node]) -> list[Line]:
    """Return the sums over all processes and all nodes."""
    demands, nodes = list(demands), list(nodes)
    return [
        Line("CPU", sum(it.count * it.cpus for it in demands), sum(node.cpus for node in nodes)),
        Line("GPU", sum(it.count * it.gpus for it in demands), sum(node.gpus for node in nodes)),
    ]


def check(demands: Sequence[Demand], nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Find a placement; return its processes by node name. Ray later finds a placement of its own.

    The largest processes are placed first, each on the first node that has room for it.

    Raises:
        ConfigError: there is no placement; with a table of the requested, available and missing
            resources, and the first process without a place.
    """
    free = {node.name: [node.cpus, node.gpus] for node in nodes}
    placed: dict[str, list[str]] = {node.name: [] for node in nodes}
    for demand in sorted(demands, key=lambda it: (-it.gpus, -it.cpus)):
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
                raise ConfigError(_refusal(demands, nodes, demand, index))
            free[room][0] -= demand.cpus
            free[room][1] -= demand.gpus
            placed[room].append(f"{demand.role}-{index}")
            if demand.guest:
                placed[room].append(f"{demand.guest}-{index}")
    return placed


def table(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """Return a table of the needs of each kind of process, the nodes and the sums; 80 columns."""
    lines = [f"{'asked':<36}{'CPU':>8}{'GPU':>8}"]
    lines += [
        f"  {f'{it.count} x {it.name} of {it.cpus} CPU, {it.gpus} GPU':<34}"
        f"{it.count * it.cpus:>8}{it.count * it.gpus:>8}"
        for it in demands
    ]
    lines += [f"{'there':<36}{'CPU':>8}{'GPU':>8}"]
    lines += [f"  {node.name:<34.34}{node.cpus:>8g}{node.gpus:>8g}" for node in nodes]
    cpu, gpu = totals(demands, nodes)
    lines += [f"{'missing':<36}{cpu.missing:>8g}{gpu.missing:>8g}"]
    return "\n".join(lines)


def _refusal(demands: Sequence[Demand], nodes: Sequence[Node], homeless: Demand, index: int) -> str:
    one = f"{homeless.cpus} CPU, {homeless.gpus} GPU"
    widest = max(nodes, key=lambda node: (node.gpus, node.cpus), default=None)
    if homeless.gpus > 1 and widest and 0 < widest.gpus < homeless.gpus:
        why = (
            f"no node is so large: {widest.name} has {widest.cpus:g} CPU, {widest.gpus:g} GPU, and "
            f"a server is within one node: t x p is at most {widest.gpus:g}"
        )
    elif any(line.missing for line in totals(demands, nodes)):
        why = "the cluster is too small"
    elif widest and (widest.gpus < homeless.gpus or widest.cpus < homeless.cpus):
        why = f"no node is so large: {widest.name} has {widest.cpus:g} CPU, {widest.gpus:g} GPU"
    else:
        why = "there is enough in all, but on no single node beside the others"
    return (
        f"{homeless.role}-{index} ({one}) finds no place: {why}. Ask for less "
        "(cluster.allocation, or the keys it stands for), or add nodes.\n"
        f"{table(demands, nodes)}"
    )
