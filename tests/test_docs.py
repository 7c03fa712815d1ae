"""What the documents show is what the code is."""

import re
from pathlib import Path
from string import Template

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    """The Python blocks of a page of docs/."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_environment_in_the_docs_is_the_one_that_arl_new_writes():
    template = (ROOT / "agentgym_rl" / "scaffold" / "env" / "$name.py.tmpl").read_text()
    written = Template(template).substitute(name="shop", Class="Shop")
    (shown,) = [block for block in blocks("environments.md") if "class Shop" in block]
    assert written.endswith(shown)
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) <= 25
