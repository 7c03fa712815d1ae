"""The resources that the processes of a run need."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_rl.config import Config


@dataclass(frozen=True)
class Demand:
    """A demand for `count` equal processes, each of which may share its resources with a guest."""

    role: str
    count: int
    cpus: int
    gpus: int = 0
    guest: str = ""
    """The role of the guests: as many other processes, which alternate with these on the same
    GPUs."""
    guest_cpus: int = 0
    """The share of `cpus` that the guest gets."""

    @property
    def name(self) -> str:
        """Return the roles of the demand, for messages."""
        return f"{self.role} + {self.guest}" if self.guest else self.role

    def share(self, role: str) -> tuple[int, float]:
        """Return the CPUs and GPUs of one process; two processes that share a GPU get half each."""
        cpus = self.guest_cpus if role == self.guest else self.cpus - self.guest_cpus
        return cpus, self.gpus / 2 if self.guest else self.gpus


def demands(config: Config, *, gpus: bool) -> list[Demand]:
    """Return the demands of a run that starts its own engines. `gpus`: whether there are GPUs,
    which determines the meaning of the device "auto"."""
    engine, trainer = config.own_engine, config.trainer
    found: list[Demand] = []
    if not engine.attached:
        size = engine.gpus_per_server if _on_gpu(engine.runs_on, gpus) else 0
        found.append(Demand("engine", engine.num_servers, engine.num_threads, size))
    size = int(_on_gpu(trainer.device, gpus))
    if config.cluster.shares_devices:
        found = [_shared(it, trainer.num_threads, size) for it in found]
    else:
        found.append(Demand("trainer", trainer.num_ranks, trainer.num_threads, size))
    count, cpus = config.rollout.player_processes
    if count:
        found.append(Demand("rollout", count, cpus))
    return found


def _shared(engine: Demand, rank_cpus: int, rank_gpus: int) -> Demand:
    """Return the demand of servers that share each of their GPUs with a rank; shared GPUs count
    once."""
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
