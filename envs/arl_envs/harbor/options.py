"""The user's options of the harbor environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

SplitBy = Literal["hash", "all"]
MAX_S = 30 * 86_400
_LEAST = {"output_chars": 200, "memory_mb": 64, "disk_mb": 16, "processes": 16, "level": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keyword arguments of the environment (`--env.options.output_chars=4000`)."""

    source: str = "bugs"
    """The tasks: the name of a generator (`bugs`, `chores`), or the path of a task folder or of a
    folder of task folders. `--env harbor:SOURCE` sets it."""
    level: int | None = None
    """The level of generated tasks; None: 1."""
    split_by: SplitBy = "hash"
    """The split of folders into training and held-out tasks: `hash` of their names, or `all` in
    both. A single task is always in both."""
    exclude: str = ""
    """The patterns of names of tasks of a folder that are left out, with commas between them."""
    offline: bool = False
    """Whether to play tasks that require a network, which sandboxes do not have."""
    output_chars: int = 8000
    """The most characters of a command's output that the agent sees; the middle is left out."""
    command_timeout_s: float = 60.0
    """The seconds of a command whose call names no `timeout_s`."""
    agent_timeout_s: float = 600.0
    """The seconds of all tool calls together for a task without `agent.timeout_sec`. The time in
    which the model writes does not count."""
    memory_mb: int = 1024
    """The memory of a task without `environment.memory_mb`."""
    disk_mb: int = 512
    """The disk of a task without `environment.storage_mb`."""
    processes: int = 128
    """The most processes of a sandbox."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise TypeError(f"source: got {self.source!r}, expected a generator or a path")
        if not isinstance(self.exclude, str):
            raise TypeError(f"exclude: got {self.exclude!r}, expected patterns such as 'a,b-*'")
        for name, least in _LEAST.items():
            value: Any = getattr(self, name)
            if value is None and name == "level":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TypeError(f"{name}: got {value!r}, expected a whole number from {least}")
        for name in ("command_timeout_s", "agent_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}: got {value!r}, expected seconds")
            if not 0 < value <= MAX_S:
                raise TypeError(f"{name}: got {value!r}, expected seconds above 0, up to {MAX_S}")
        if self.split_by not in get_args(SplitBy):
            raise TypeError(
                f"split_by: got {self.split_by!r}; allowed: {', '.join(get_args(SplitBy))}"
            )
        if not isinstance(self.offline, bool):
            raise TypeError(f"offline: got {self.offline!r}; allowed: true, false")
