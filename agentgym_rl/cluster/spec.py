"""The specification of a process, which `engines/` and `trainer/` make and `cluster/` starts. A
child process ends together with its parent."""

from __future__ import annotations

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
    """The URL that answers 200 once the process is ready; empty: the process reports this
    itself."""
    silence_limit_s: float = 60.0
    """The longest time, in seconds, without an answer of the health URL, after the first answer,
    while the process runs."""
    finite: bool = False
    """Whether the process may end by itself: then exit code 0 is success. False: any exit that was
    not requested is an error."""
    restartable: bool = False
    """Whether the code that started the process restarts it after its death. False: the run
    ends."""
    runs_strangers: bool = False
    """Whether the process has sandboxed descendants that run programs written by a model. True:
    only the process itself can count as frozen. False: the process also counts as frozen if a
    descendant is stopped."""
    imports: Sequence[str] = ()
    """The slow modules that the process imports, if it is a `python -m` without GPU; it may be
    forked from a process that has imported them."""
