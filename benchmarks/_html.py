"""A report of all kept results as one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ._kept import Kept
from ._said import said, verdict

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #4257c9; --weak: #6a7080; }
@media (prefers-color-scheme: dark) { :root { --bar: #8ea0ff; --weak: #a3a9b8; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.weak { color: var(--weak); font-size: .85rem; }
code { overflow-wrap: anywhere; }
section { border-top: 2px solid var(--line); margin-top: 2rem; }
svg { max-width: 34rem; width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 12px; }
"""
_WIDEST = 34
"""Characters of a bar's name; the rest is cut."""


def page(found: Sequence[Kept]) -> str:
    """The whole report; text of results is escaped."""
    sections = "".join(_section(kept) for kept in found)
    links = " · ".join(f'<a href="#{escape(k.name)}">{escape(k.name)}</a>' for k in found)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>agentgym-rl: benchmarks</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Benchmarks</h1><p>Each with its peers, measured in the same run. {links}</p>"
        f"{sections}</main></body></html>\n"
    )


def _section(kept: Kept) -> str:
    result = kept.result
    facts = [
        f"{kept.date}, {kept.seconds:,.0f} s, load average {kept.load[0]} to {kept.load[1]}",
        str(result.get("hardware", "")),
        ", ".join(f"{k} {v}" for k, v in (result.get("versions") or {}).items()),
    ]
    head = "<br>".join(escape(line) for line in facts if line)
    parts = [
        f'<section id="{escape(kept.name)}"><h2>{escape(kept.name)}</h2>',
        f'<p><code>{escape(kept.command)}</code></p><p class="weak">{head}</p>',
    ]
    if kept.error:
        parts.append(f"<p><strong>No result:</strong> {escape(kept.error)}</p>")
    if "goal" in result:
        parts.append(f"<p>Goal: {escape(said(result['goal']))}. {escape(verdict(result))}</p>")
    parts += [
        *_bars(result.get("ratios") or {}),
        *_table(result.get("table") or result.get("rows")),
    ]
    return "".join([*parts, "</section>"])


def _bars(ratios: Mapping[str, Any]) -> Iterator[str]:
    """A bar for each ratio, with a line where ours and the peer are even."""
    numbers = {k: float(v) for k, v in ratios.items() if isinstance(v, int | float)}
    if not numbers:
        return
    widest = max(*numbers.values(), 1.0)
    height = 22 * len(numbers) + 20
    yield f'<svg viewBox="0 0 520 {height}" role="img" aria-label="ratios">'
    even = 240 + 220 / widest
    for at, (name, value) in enumerate(numbers.items()):
        y = 22 * at
        cut = name if len(name) <= _WIDEST else f"{name[:_WIDEST]}…"
        yield f'<text x="232" y="{y + 15}" text-anchor="end">{escape(cut)}</text>'
        yield (
            f'<rect x="240" y="{y + 3}" width="{220 * max(value, 0) / widest:.1f}" height="16" '
            f'fill="var(--bar)"><title>{escape(name)}: {value:.3g}</title></rect>'
            f'<text x="{246 + 220 * max(value, 0) / widest:.1f}" y="{y + 15}">{value:.3g}</text>'
        )
    yield f'<line x1="{even:.1f}" x2="{even:.1f}" y1="0" y2="{height - 18}" stroke="currentColor"/>'
    yield f'<text x="{even:.1f}" y="{height - 4}" text-anchor="middle">even</text></svg>'


def _table(rows: Any) -> Iterator[str]:
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(name)}</th>" for name in names)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>"
    yield "</tbody></table></div>"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if number else ''}>{escape(said(value))}</td>"
