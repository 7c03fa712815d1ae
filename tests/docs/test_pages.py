"""What the documents show is what the code is."""

import re
from string import Template

import pytest

from agentgym_rl.gateway.dialects import responses_request as responses
from agentgym_rl.gateway.request import chat_request as chat
from agentgym_rl.trainer.world import join_world
from tests.docs.blocks import ROOT, blocks, load_script


def python(page: str, words: str) -> list[str]:
    """The Python blocks of a page with these words."""
    return [block.text for block in blocks("python", page) if words in block.text]


def test_the_environment_in_the_docs_is_the_one_that_arl_new_writes():
    template = (ROOT / "agentgym_rl" / "gym" / "scaffold" / "env" / "$name.py.tmpl").read_text()
    written = Template(template).substitute(name="shop", Class="Shop")
    (shown,) = python("docs/environments.md", "class Shop")
    assert written.endswith(shown)
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) <= 25


def test_the_agent_in_the_docs_is_the_example():
    (shown,) = python("docs/agents.md", "class Patient")
    assert (ROOT / "examples" / "own_agent.py").read_text().endswith(shown)
    assert len([line for line in shown.splitlines() if line.strip()]) <= 30


def test_every_variable_of_a_program_is_in_the_docs():
    from arl_agents.command.variables import TOLD

    text = (ROOT / "docs" / "agents.md").read_text()
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE)) == TOLD


def test_every_agent_is_in_the_docs():
    from agentgym_rl.gym.registry import names

    text = (ROOT / "docs" / "agents.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \| .+ \| .*\|$", text, re.MULTILINE))
    ours = {name.removesuffix("-v0") for name in names("agent") if "/" not in name}
    assert ours <= listed


@pytest.mark.parametrize(("title", "code"), [("Chat completions", chat), ("Responses", responses)])
def test_the_endpoint_page_names_every_parameter_that_is_read(title, code):
    page = (ROOT / "docs" / "gateway.md").read_text()
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| (honoured|ignored|refused) \| (.*) \|$", section, re.MULTILINE)
    named = {kind: set(re.findall(r"`(\w+)", words)) for kind, words in kinds}
    assert not code._IGNORED - named["ignored"]
    assert not code._READ - (named["honoured"] | named["ignored"] | named["refused"])
    assert not named["honoured"] - code._READ - {"auto", "none"}


def _architectures():
    """What docs/models.md says of each: what the trainer does, and how the engine decodes."""
    page = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| ((?:trains|refused)[^|]*) \| (\w*) ?\| (.+) \|$", page, re.MULTILINE)
    return {
        name: (trainer, decoder) for trainer, decoder, names in rows for name in names.split(", ")
    }


@pytest.mark.slow  # it imports all that trains and decodes
def test_the_page_of_models_has_every_architecture_of_the_script():
    assert _architectures().keys() == load_script("architectures").ARCHITECTURES.keys()


@pytest.mark.slow
def test_architectures_are_as_the_page_of_models_says(tmp_path):
    script = load_script("architectures")
    faults = []
    with join_world() as world:
        for name in ("Gemma3Text", "Lfm2", "Qwen3Moe"):
            folder = tmp_path / name
            script.make(name, folder)
            found = script.tried(name, folder, world)
            if _architectures()[name] != (found.trainer, found.decoder):
                faults.append((name, found))
    assert not faults
