"""Attacks against containers: what is left over is looked for at the daemon and on the machine."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from arena import GVISOR, LIMITS, SETTLE_S, Arena
from arl_sandboxes.docker import DockerBackend, owner

WARM = 1
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass
class ContainerArena(Arena):
    """Its backend has `WARM` containers while nothing is going on, of three processes each."""

    empty: str = "[] [] []\n"
    cancel_within_s: float = 1.0

    @functools.cached_property
    def api(self) -> Any:
        return docker.from_env().api

    async def check_processes(self, num_slots: int = 1, *, num_backends: int = 1) -> None:
        """No container but the warm and the used, no process in one that is gone, and no exec."""
        expected = WARM * num_backends + self.backend.stats().in_use
        until = time.monotonic() + SETTLE_S
        while wrong := await asyncio.to_thread(self._wrong, expected):
            assert time.monotonic() < until, f"left over: {wrong}"
            await asyncio.sleep(0.05)

    def _wrong(self, expected: int) -> str:
        mine, known = self.containers(), {each["Id"] for each in self.api.containers(all=True)}
        if len(mine) != expected:
            return f"{len(mine)} containers, not {expected}: {[each['Names'] for each in mine]}"
        if lost := [pid for pid, id in processes() if id not in known]:
            return f"processes {lost} of containers that are gone"
        for each in mine:
            try:
                execs = self.api.inspect_container(each["Id"])["ExecIDs"]
                running = self.api.top(each["Id"])["Processes"]
            except docker.errors.APIError as error:
                return str(error)
            if execs or len(running) > 2:
                return f"{each['Names']}: execs {execs}, processes {running}"
        return ""

    def own_containers(self) -> list[str]:
        return [each["Id"] for each in self.containers()]

    def own_processes(self) -> list[int]:
        own = set(self.own_containers())
        return [pid for pid, id in processes() if id in own]

    def fork_servers(self) -> list[int]:
        own, first = set(self.own_containers()), {}
        for pid, id in processes():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if id in own and b"--fork-server" in words:
                first[id] = min(first.get(id, (1 << 30, 0)), (_inner_number(pid), pid))
        return [pid for _, pid in first.values()]  # programs, which are forks of it, came later

    def containers(self) -> list[dict[str, Any]]:
        """Those of this process, whether they run or not."""
        wanted = {"label": [f"{name}={text}" for name, text in owner.labels("").items() if text]}
        return self.api.containers(all=True, filters=wanted)


def processes() -> Iterator[tuple[int, str]]:
    """(process number, id of its container) of all that are in one of this machine's daemon."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found = _ID.search((folder / "cgroup").read_text())
        except OSError:
            continue
        if found:
            yield int(folder.name), found[0]


def _inner_number(pid: int) -> int:
    """In its container."""
    found = re.search(r"^NSpid:.*\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) if found else 0


def container_arena(mode: str, **about: Any) -> ContainerArena:
    def make(containers: int) -> DockerBackend:
        runtime = "runsc" if mode == GVISOR else ""
        return DockerBackend(containers=containers, warm=WARM, limits=LIMITS, runtime=runtime)

    return ContainerArena(mode, make(1), make_backend=make, **about)
