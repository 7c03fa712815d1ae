"""The servers of another project that an interpreter has, found without importing them, and the
releases of the project that can be driven."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym_rl.core import ConfigError, Interrupt

if TYPE_CHECKING:
    from agentgym_rl.gym import Probe

Release = tuple[int, ...]

_PROBE_TIMEOUT_S = 30.0
_PROBE = """
import json
from importlib import metadata
found = {{}}
for name in {names!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
points = metadata.entry_points(group={group!r})
print(json.dumps([found, [point.value for point in points]]))
"""


@dataclass(frozen=True, slots=True)
class Build:
    """An installed release of another project that can be driven, and the interpreter that has
    it."""

    python: str
    version: str
    is_cpu: bool
    has_spans: bool
    """Whether it reports which policy version sampled which token."""


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases of another project that can be driven: those in [lowest, below)."""

    title: str
    lowest: Release
    below: Release
    spans_since: Release
    """The first release that reports which policy version sampled which token."""
    without_spans: Sequence[Interrupt]
    """The values of `rollout.interrupt` that give every token its version in spite of that."""
    hint: str = ""
    """What to install, at the end of messages."""

    def build(self, python: str, version: str, *, is_cpu: bool) -> Build:
        """Return the checked release of an interpreter.

        Raises:
            ConfigError: see `check`.
        """
        self.check(version, where=python)
        return Build(python, version, is_cpu, self.has_spans(version))

    def check(self, version: str, *, where: str) -> None:
        """Check that a release can be driven.

        Raises:
            ConfigError: it cannot; the message has the ones that can.
        """
        if not self.lowest <= parse_release(version) < self.below:
            raise ConfigError(
                f"{where} has {self.title} {version}; supported is "
                f">={dotted(self.lowest)},<{dotted(self.below)}{self.hint}"
            )

    def has_spans(self, version: str) -> bool:
        """Return whether a release reports which policy version sampled which token."""
        return parse_release(version) >= self.spans_since

    def check_interrupt(self, interrupt: Interrupt, *, has_spans: bool, where: str) -> None:
        """Check that each token's version is known in spite of interrupts.

        Raises:
            ConfigError: it is not; the message has the interrupts under which it is.
        """
        if not has_spans and interrupt not in self.without_spans:
            raise ConfigError(
                f"the {self.title} at {where} does not report the version of each token, so it "
                f"needs rollout.interrupt {' or '.join(map(repr, self.without_spans))}, got "
                f"{interrupt!r}"
            )


def interpreter(python: str) -> str:
    """Return the absolute path of engine.python; empty: of the running interpreter."""
    return os.path.abspath(shutil.which(python or sys.executable) or python)


def ask_packages(
    python: str, *names: str, group: str = "none"
) -> tuple[Mapping[str, str], list[str]]:
    """Return the versions of the packages `names` that an interpreter has, by name, and the values
    of its entry points of `group`.

    Raises:
        ConfigError: it is not a Python interpreter, or its packages cannot be queried.
    """
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE.format(names=names, group=group)],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_TIMEOUT_S,
        )
        found, points = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        if isinstance(error, subprocess.CalledProcessError):
            why = f"exit status {error.returncode} {error.stderr.strip()[-500:]}".strip()
        else:
            why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"engine.python {python!r} is no Python interpreter that can be asked for its "
            f"packages: {why}"
        ) from error
    return found, points


def parse_release(version: str) -> tuple[int, ...]:
    """Return (0, 32, 0) for "0.32.0", "0.32.0.post1" or "0.32.0+cpu"; () for any other text."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def dotted(release: Release) -> str:
    """Return the text of a release, as "0.32"."""
    return ".".join(map(str, release))


def probe_build(title: str, find_build: Callable[[], Build]) -> Probe:
    """Return whether `find_build`, which raises ConfigError, finds the project `title`."""
    from agentgym_rl.gym import Probe

    try:
        build = find_build()
    except ConfigError as error:
        type = title.lower()
        return Probe(
            *(title, False, str(error)),
            fix=f"the embedded engine needs none of it; {title} in another interpreter: "
            f"--engine.type={type} --engine.python=FILE (arl docs {type})",
            required=False,
        )
    device = "CPU build" if build.is_cpu else "GPU build"
    return Probe(title, True, f"{build.version}, {device} ({build.python})", required=False)
