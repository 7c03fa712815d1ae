"""The table of docs/models.md: small random models of many architectures, tried as runs try them.

python scripts/architectures.py           # try all, and write the table
python scripts/architectures.py NAME ...  # try some, and print their rows and differences
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from agentgym_rl.core import near_of

# isort: split
from architecture_catalogue import ARCHITECTURES, make
from architecture_trial import TOLERANCE, Found, tried

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
_HEAD = (
    "| architecture | embedded engine | rows in training | trains | LoRA | exports | refusal |\n"
    "|---|---|---|---|---|---|---|\n"
)
_PATHS = {"fused": "fused", "cached": "module", "uncached": "module, uncached"}


def found(name: str) -> tuple[str, Found]:
    """Try the architecture `name`; return its title in the table, and the result."""
    with tempfile.TemporaryDirectory() as folder:
        kind = make(name, Path(folder))
        _, _, note = name.partition(", ")
        return f"{kind} ({note})" if note else kind, tried(Path(folder))


def row(title: str, it: Found) -> str:
    """Return the row of the table."""
    if it.refused:
        why = it.refused.removesuffix(" (arl docs models lists what trains)").replace("|", "\\|")
        return f"| {title} | | | no | | | {why} |"
    engine = _PATHS[it.engine]
    return f"| {title} | {engine} | {it.rows} | yes | {it.lora} | {it.names} | |"


def table(rows: Iterable[str]) -> str:
    """Return the table with its head."""
    return _HEAD + "".join(f"{it}\n" for it in sorted(rows, key=str.lower))


def main() -> int:
    """Return 1 if a model differs from plain transformers by more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an architecture (default: all)")
    names: list[str] = parser.parse_args().names
    for name in names:
        if name not in ARCHITECTURES:
            near = near_of(name, ARCHITECTURES, most=3, others="there are")
            parser.error(f"no architecture {name!r}; {near}")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows, worst, wrong = [], 0.0, {}
    for name in names or ARCHITECTURES:
        title, it = found(name)
        rows.append(row(title, it))
        gaps = {what: gap for what, gap in it.gaps.items() if what not in ("gradient", "adapter")}
        worst = max([worst, *gaps.values()])
        wrong |= {name: it.wrong} if it.wrong else {}
        print(rows[-1], *(f"{what} {gap:.1e};" for what, gap in it.gaps.items()), flush=True)
    print(f"largest difference of a log-prob {worst:.1e}, allowed {TOLERANCE:g}; wrong: {wrong}")
    if not names and not wrong:
        text = PAGE.read_text()
        text = re.sub(r"\| architecture \|(.*\n)+?(?=\n)", lambda _: table(rows), text)
        versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
        PAGE.write_text(re.sub(r"transformers [\d.]+, torch [\d.]+(\+cpu)?", versions, text))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
