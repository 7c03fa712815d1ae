"""The description of a process, which `engines/` and `trainer/` request and `cluster/` starts. A
child process ends together with its parent."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A child process. Its output goes to `logs/<name>.log` of the run."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The variables that are added to the parent's environment."""
    health_url: str = ""
    """The URL that answers 200 once the process is ready; empty: it reports readiness itself."""
    silence_limit_s: float = 60.0
    """The longest silence of the health URL, after its first answer, while the process runs."""
    finite: bool = False
    """The kind of end. True: exit code 0 is success. False: any unrequested exit is an error."""
    restartable: bool = False
    """The effect of its death. True: the code that started it restarts it. False: the run ends."""
    runs_strangers: bool = False
    """The presence of descendants, in sandboxes, that are programs written by a model. True: only
    the process itself can count as frozen. False: a stopped descendant means it is frozen, too."""
    imports: Sequence[str] = ()
    """The slow modules that a `python -m` without GPU needs, from which it may be forked."""


def reserved_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a socket that reserves a free port for a server to be started, as long as it is open:
    the kernel gives the port to no process that asks for any port, and a server that is told its
    number, and sets SO_REUSEADDR as servers do, may listen there."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
    except OSError:
        held.close()
        raise
    return held


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of this host's `address` that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
