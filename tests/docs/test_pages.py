"""What the documents show is what the code is."""

import re
from string import Template

import pytest
from arl_dialects import responses_request as responses

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import flat
from agentgym_rl.gateway.request import chat_request as chat
from tests.contracts.engines import table
from tests.docs.blocks import ROOT, blocks


def python(page: str, words: str) -> list[str]:
    """The Python blocks of a page with these words."""
    return [block.text for block in blocks("python", page) if words in block.text]


def test_the_environment_in_the_docs_is_the_one_that_arl_new_writes():
    template = (
        ROOT / "extensions" / "arl_check" / "scaffold" / "env" / "$name.py.tmpl"
    ).read_text()
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
    from arl_agents.command.variables import EPISODE_VARIABLES

    text = (ROOT / "docs" / "agents.md").read_text()
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE)) == EPISODE_VARIABLES


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


def test_the_table_of_engines_is_made_from_their_declarations():
    assert table() in (ROOT / "docs/engines.md").read_text()


def test_the_keys_of_the_objective_that_the_page_names_exist():
    """Correct a key of `algo` on the page, and it fails here until the key is there."""
    known = {"algo", "algo.behavior_correction.floor", "algo.behavior_correction.reduce"}
    known |= {f"algo.{key}" for key in flat(AlgoConfig().model_dump())}
    known |= {key.rpartition(".")[0] for key in known}
    known |= {
        f"algo.{name}"
        for name in ("loss_options", "advantage_options", "leave_out", "reward.parts")
    }
    page = (ROOT / "docs" / "algorithms.md").read_text()
    named = {key[1:] for key in re.findall(r"[`(-]algo(?:\.[a-z_]+)+", page)}
    assert len(named) > 25
    assert named - known == set()


def test_the_comparison_with_other_systems_has_the_numbers_on_the_page():
    lines = (ROOT / "docs" / "data" / "peers.txt").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    verdicts = [verdict for verdict, *_ in rows]
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert f"compares {verdicts.count('agree')} losses" in page
    assert f"{verdicts.count('cannot be said')} recipes cannot be expressed" in page
    assert "differ" not in verdicts
    assert len({(system, row) for _, system, row, _ in rows}) == len(rows) > 145
    assert all(float(number) < 2e-5 for verdict, *_, number in rows if verdict == "agree")
