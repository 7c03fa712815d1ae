"""What the documents show is what the code is."""

import re
from pathlib import Path
from string import Template

import pytest

from agentgym_rl.gateway import requests as chat
from agentgym_rl.gateway.dialects.responses import requests as responses

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


@pytest.mark.parametrize(("title", "code"), [("Chat completions", chat), ("Responses", responses)])
def test_the_endpoint_page_names_every_parameter_that_is_read(title, code):
    page = (ROOT / "docs" / "gateway.md").read_text()
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| (honoured|ignored|refused) \| (.*) \|$", section, re.MULTILINE)
    named = {kind: set(re.findall(r"`(\w+)", words)) for kind, words in kinds}
    assert not code._IGNORED - named["ignored"]
    assert not code._READ - (named["honoured"] | named["ignored"] | named["refused"])
    assert not named["honoured"] - code._READ - {"auto", "none"}
