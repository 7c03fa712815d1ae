"""What `arl doctor` prints: a line for each probe, and what programs get."""

from __future__ import annotations

import dataclasses
import textwrap

from agentgym_rl.sandbox import Probe, ProbeReport


def probe_text(report: ProbeReport) -> str:
    """The report, for people; lines of at most 100 characters."""
    width = max((len(probe.name) for probe in report.probes), default=0)
    lines = [line for probe in report.probes for line in _lines(probe, width)]
    lines.append("")
    if not report.ok:
        return "\n".join([*lines, f"sandbox {report.backend}: does not work on this machine"])
    lines.append(f"sandbox {report.backend}: works; programs there get")
    for field in dataclasses.fields(report.capabilities):
        value = getattr(report.capabilities, field.name)
        names = isinstance(value, frozenset)
        said = (", ".join(sorted(value)) or "none") if names else ("yes" if value else "no")
        lines.append(f"  {field.name:<18} {said}")
    return "\n".join(lines)


def _lines(probe: Probe, width: int) -> list[str]:
    mark = "ok  " if probe.ok else ("FAIL" if probe.required else "no  ")
    indent = " " * (width + 7)
    text = probe.detail if probe.ok or not probe.fix else f"{probe.detail}\n{probe.fix}"
    head = f"{mark} {probe.name:<{width}}  "
    wrapped = [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(part, 93 - width, break_on_hyphens=False)
    ] or [""]
    return [(head if i == 0 else indent) + line for i, line in enumerate(wrapped)]
