"""The text of `arl doctor`: a line for each probe, and the capabilities of a sandbox."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

from agentgym_rl.gym.sandbox import Probe, ProbeReport

_WIDTH = 80


def probe_text(report: ProbeReport) -> str:
    """Return the report of a sandbox as text, in lines of at most 80 characters."""
    lines = [*probe_lines(report.probes), ""]
    if not report.ok:
        return "\n".join([*lines, f"sandbox {report.backend}: does not work on this machine"])
    lines.append(f"sandbox {report.backend}: works; programs there get")
    for field in dataclasses.fields(report.capabilities):
        value = getattr(report.capabilities, field.name)
        names = isinstance(value, frozenset)
        said = (", ".join(sorted(value)) or "none") if names else ("yes" if value else "no")
        lines.append(f"  {field.name:<18} {said}")
    return "\n".join(lines)


def machine_text(probes: Sequence[Probe]) -> str:
    """Return the report of the machine as text, likewise."""
    missing = [probe.name for probe in probes if probe.required and not probe.ok]
    works = "`arl train --env math --agent react` works here"
    said = f"missing for any run: {', '.join(missing)}" if missing else works
    return "\n".join([*probe_lines(probes), "", said])


def probe_lines(probes: Sequence[Probe]) -> Iterator[str]:
    """Yield one or more lines for each probe: ok, FAIL (it is required) or no, and the remedy."""
    width = max((len(probe.name) for probe in probes), default=0)
    for probe in probes:
        yield from _lines(probe, width)


def _lines(probe: Probe, width: int) -> list[str]:
    mark = "ok  " if probe.ok else ("FAIL" if probe.required else "no  ")
    indent = " " * (width + 7)
    text = probe.detail if probe.ok or not probe.fix else f"{probe.detail}\n{probe.fix}"
    head = f"{mark} {probe.name:<{width}}  "
    wrapped = [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            part, _WIDTH - 7 - width, break_on_hyphens=False, break_long_words=False
        )
    ] or [""]
    return [(head if i == 0 else indent) + line for i, line in enumerate(wrapped)]
