"""Runs on a Ray cluster whose nodes can be lost, and their faults."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.ray_nodes import RayNodes

from ._faults import (
    HANG,
    LOG,
    PROGRAMS,
    SLOT_SERVER,
    TRAINER,
    Injection,
    hang,
    hosts,
    logged,
    no_disk,
    no_log,
    no_memory,
    send,
    stutter,
    stutter_controller,
    stutter_hosts,
)
from ._faulty import Fault, FaultyRun, Row
from .crash import processes_of

NODES = 4
"""The number of nodes, in addition to the head, which has only the controller; with two CPUs each,
so that any one can be lost."""
_WORKERS = 2


class RayRun(FaultyRun):
    """A run with one fault, on a cluster of its own."""

    steps = 100_000
    """A number of steps that is never reached: the run is interrupted once it has recovered, since
    Ray moves processes of a lost node only when it has noticed the loss, too."""

    def __init__(self, folder: Path, fault: Fault) -> None:
        super().__init__(folder, fault)
        self.nodes = RayNodes(NODES)

    def measure(self) -> Row:
        with self.nodes:
            try:
                return super().measure()
            finally:
                self.close()  # before its cluster

    def finished(self) -> Row:
        self.interrupt()
        return {"tokens_sampled_again": None}

    def processes(self, command: str) -> list[int]:
        """Return the processes of the run on any node."""
        words = f"\0{command}\0--config\0{self.folder}/"
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and words in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        return found

    def hosts(self, words: str) -> list[int]:
        """Return the hosts of the sandboxes, which belong to rollout workers."""
        workers = self.processes("rollout")
        return [pid for worker in workers for pid, line in processes_of(worker) if words in line]

    def command(self, words: Sequence[str]) -> list[str]:
        is_new = "--resume" not in words
        more = (
            "--cluster.type=ray",
            f"--cluster.address={self.nodes.address}",
            f"--cluster.nodes={NODES + 1}",
            f"--rollout.workers={_WORKERS}",
        )
        if self.fault.reported:
            variables = f"{{ARL_FAULT_DIR='{self.folder.parent}'}}"
            more = (*more, f"--cluster.runtime_env={{env_vars={variables}}}")
        return self.nodes.command([*words, *(more if is_new else ())])


def _freeze_host(command: str) -> Callable[[FaultyRun], None]:
    """Stop the actor of a process, which Ray's own checks do not cover."""

    def inject(run: FaultyRun) -> None:
        stat = Path(f"/proc/{run.child(command)}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGSTOP)

    return inject


def _kill_node(command: str) -> Callable[[FaultyRun], None]:
    def inject(run: FaultyRun) -> None:
        assert isinstance(run, RayRun)
        run.nodes.kill(run.nodes.node_of(run.child(command)))

    return inject


def _cut_node(command: str) -> Callable[[FaultyRun], None]:
    def inject(run: FaultyRun) -> None:
        assert isinstance(run, RayRun)
        run.nodes.cut(run.nodes.node_of(run.child(command)))

    return inject


_SIGNS = {
    "engine": "engine-[01] is out of service",
    "trainer": "the trainer is lost",
    "rollout": "rollout-[01] is lost",
}
_WORDS = {"engine": "engine", "trainer": "trainer", "rollout": "worker"}


def _of(role: str) -> dict[str, Fault]:
    """Return the faults of a process of this kind."""
    sign, word = _SIGNS[role], _WORDS[role]
    return {
        f"{word} killed": Fault(send(role, signal.SIGKILL), sign, on_ray=True),
        f"{word} frozen": Fault(send(role, signal.SIGSTOP), sign, on_ray=True),
        f"{word} slow": Fault(stutter(role), on_ray=True),
        f"host of {word} frozen": Fault(_freeze_host(role), sign, on_ray=True),
        f"node of {word} killed": Fault(_kill_node(role), sign, on_ray=True),
        f"node of {word} cut off": Fault(_cut_node(role), sign, on_ray=True),
    }


def _of_sandboxes() -> dict[str, Fault]:
    """Return the faults of all sandbox slots of both workers at once."""

    def fault(inject: Injection, *, reported: bool = True) -> Fault:
        return Fault(inject, flags=PROGRAMS, reported=reported, always_paid=True, on_ray=True)

    def sent(number: signal.Signals) -> Injection:
        return logged(hosts(SLOT_SERVER, number, below=1), "rollout-*.log", " is lost: ")

    return {
        "sandbox host killed": fault(sent(signal.SIGKILL)),
        "sandbox host frozen": fault(sent(signal.SIGSTOP)),
        "sandbox host slow": fault(stutter_hosts(SLOT_SERVER), reported=False),
    }


FAULTS: Mapping[str, Fault] = {
    f"ray: {name}": fault
    for name, fault in {
        "controller killed": Fault(
            lambda run: os.kill(run.pid, signal.SIGKILL), ends=True, on_ray=True
        ),
        "controller slow": Fault(stutter_controller, on_ray=True),
        "log without disk": Fault(no_log, LOG, ends=True, on_ray=True),
        "trainer without disk": Fault(no_disk, TRAINER, ends=True, on_ray=True),
        "trainer without memory": Fault(no_memory, _SIGNS["trainer"], on_ray=True),
        "tool never returns": Fault(
            hang,
            flags=("--env=benchmarks._fault_envs:HangingTool", *HANG),
            reported=True,
            on_ray=True,
        ),
        **_of_sandboxes(),
        **_of("engine"),
        **_of("trainer"),
        **_of("rollout"),
    }.items()
}
