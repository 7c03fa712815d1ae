"""A report of all kept results as one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ._formatting import formatted, numeric_ratios, outcome
from ._kept import Kept

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
.bars { margin-bottom: 1rem; max-width: 44rem; width: 100%; }
.bars caption { color: var(--weak); padding-bottom: .25rem; text-align: left; }
.bars th { font-weight: normal; }
.bars td:nth-child(2) { padding: .25rem 0; width: 45%; background: no-repeat
    linear-gradient(currentColor, currentColor) var(--even) 0 / 1px 100%; }
.bars div { background: var(--bar); height: 1rem; }
"""


def page(found: Sequence[Kept]) -> str:
    """Return the report; text of results is escaped."""
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
        formatted(result.get("versions")),
    ]
    head = "<br>".join(escape(line) for line in facts if line)
    parts = [
        f'<section id="{escape(kept.name)}"><h2>{escape(kept.name)}</h2>',
        f'<p><code>{escape(kept.command)}</code></p><p class="weak">{head}</p>',
    ]
    if kept.error:
        parts.append(f"<p><strong>No result:</strong> {escape(kept.error)}</p>")
    if "goal" in result:
        parts.append(f"<p>{escape(outcome(result))}</p>")
    parts += [
        *_bars(numeric_ratios(result)),
        *_table(result.get("table") or result.get("rows")),
    ]
    return "".join([*parts, "</section>"])


def _bars(ratios: Mapping[str, float]) -> Iterator[str]:
    """Return a bar for each ratio, with a line at 1."""
    if not ratios:
        return
    widest = max(*ratios.values(), 1.0)
    yield f'<table class="bars" style="--even: {100 / widest:.1f}%">'
    yield "<caption>Ratios; at the line the two are even</caption><tbody>"
    for name, value in ratios.items():
        bar = f'<div style="width: {100 * max(value, 0) / widest:.1f}%"></div>'
        yield f"<tr><th>{escape(name)}</th><td>{bar}</td>{_cell(value)}</tr>"
    yield "</tbody></table>"


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
    return f"<td{' class=number' if number else ''}>{escape(formatted(value))}</td>"
