"""The attacks, by what they go for; importing this package fills `arena.ATTACKS`."""

from . import (
    bombs,
    escapes,
    files,
    landlock_files,
    landlock_processes,
    landlock_sockets,
    memory,
    persistence,
    programs,
    secrets,
    sessions,
    signals,
)

__all__ = [
    "bombs", "escapes", "files", "landlock_files", "landlock_processes", "landlock_sockets",
    "memory", "persistence", "programs", "secrets", "sessions", "signals",
]  # fmt: skip
