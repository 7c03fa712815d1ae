"""`arl docs` and `arl examples`, and the places that messages name: all are in the package."""

import ast
import json
import re

import pytest
from arl_start.examples import all_examples
from arl_start.pages import Page, all_pages, anchor_of, page_named, search

from agentgym_rl.cli import main as cli
from agentgym_rl.cli.registry import all_commands
from agentgym_rl.core import ConfigError
from tests.docs.blocks import ROOT
from tests.kit.cases import cases

CODE = ("agentgym_rl", "envs", "agents", "sandboxes", "extensions")
OF_A_CLONE = re.compile(
    r"\bdocs/(?:[\w/-]+\.md|$)|\bexamples/\w+\.\w+|\brequirements/"
    r"|\bmake (?:test|real|train|install)\b"
)
PLACE = re.compile(r"\barl docs ([a-z][\w/-]*)(?:#([\w-]+))?")


@pytest.fixture
def arl(capsys):
    """Run a command; returns its exit code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(list(argv))
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def page(tmp_path) -> Page:
    file = tmp_path / "shop.md"
    file.write_text(
        "# Shop\nSee [agents](agents.md#any-program), [below](#a-price), ![curve](x.png).\n"
        "## A price\n```bash\n# a comment\n[not a link](agents.md)\n```\n### In euros\nx\n"
        "## `arl check`: what?\nend\n"
    )
    return Page("shop", file)


def test_the_sections_of_a_page(page):
    assert [(it.title, it.anchor, it.place) for it in page.sections] == [
        ("Shop", "shop", "shop"),
        ("A price", "a-price", "shop#a-price"),
        ("In euros", "in-euros", "shop#in-euros"),
        ("`arl check`: what?", "arl-check-what", "shop#arl-check-what"),
    ]


def test_a_section_has_those_below_it(page):
    assert page.text("a-price").splitlines()[-2:] == ["### In euros", "x"]
    assert "[not a link](agents.md)" in page.text("a-price")
    assert page.text("arl-check-what").splitlines()[-1] == "end"
    with pytest.raises(ConfigError, match="no such section; did you mean a-price"):
        page.text("a-prise")


def test_links_become_commands():
    text = page_named("quickstart").text()
    assert "Installation (arl docs install)" in text
    assert not re.search(r"\]\((?!\w+:)", text)


def test_pages_are_listed_and_printed(arl):
    code, out, _ = arl("docs", "--json")
    pages = json.loads(out)["pages"]
    assert (code, pages["install"]) == (0, "Installation")
    assert list(pages)[-2:] == ["decisions", "measurements"]
    _, out, _ = arl("docs", "docs/install.md#extras")
    assert out.startswith("## Extras\n")
    code, _, err = arl("docs", "instal")
    assert (code, "did you mean install" in err) == (2, True)


def test_a_search_shows_headings_first_and_records_last(arl):
    _, out, _ = arl("docs", "--search", "LoRA")
    first = "arl docs my-model#lora\n    ## LoRA\narl docs trainer#lora\n    ## LoRA\n"
    assert out.startswith(first)
    places = [section.page for section, _ in search("Staleness")]
    assert places.index("decisions") > places.index("glossary")
    code, out, _ = arl("docs", "--search", "zyzzyva")
    assert (code, out) == (1, "no section has all of these words: zyzzyva\n")


def test_examples_are_listed_and_copied(arl, tmp_path):
    _, out, _ = arl("examples", "--json")
    assert {"math.toml", "own_env.py", "node_agent", "vllm-cpu.txt"} <= set(
        json.loads(out)["examples"]
    )
    to = tmp_path / "new"
    code, out, _ = arl("examples", "math.toml", "examples/node_agent", "--out", str(to))
    assert code == 0
    assert (to / "math.toml").read_text() == (ROOT / "examples/math.toml").read_text()
    assert (to / "node_agent" / "package.json").exists()
    code, _, err = arl("examples", "own_env.py", "math.toml", "--out", str(to))
    assert (code, "math.toml: there already, and nothing was copied" in err) == (2, True)
    assert not (to / "own_env.py").exists()
    code, _, err = arl("examples", "maths.toml")
    assert (code, "did you mean math.toml" in err) == (2, True)


def test_every_example_has_a_first_line(arl):
    _, out, _ = arl("examples")
    assert len(out.splitlines()) == len(all_examples())
    assert not [line for line in out.splitlines() if len(line.split()) < 3]


def shown_texts() -> dict[str, str]:
    """The texts that a user sees, by place: strings that are no docstrings, and --help of keys."""
    found: dict[str, str] = {}
    for file in (it for top in CODE for it in (ROOT / top).rglob("*.py")):
        tree = ast.parse(file.read_text())
        bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in bare:
                found[f"{file.relative_to(ROOT)}:{node.lineno}"] = node.value
    return found


def key_texts() -> dict[str, str]:
    from pydantic import BaseModel

    from agentgym_rl.config import Config, fields_of, section_types

    def of(model: type[BaseModel], prefix: str) -> None:
        found[prefix] = model.__doc__ or ""
        for name, field in fields_of(model).items():
            found[f"{prefix}.{name}"] = field.description or ""
            for kind in section_types(field):
                of(kind, f"{prefix}.{name}")

    found: dict[str, str] = {}
    of(Config, "")
    return found


def test_no_text_names_a_file_that_only_a_clone_has():
    texts = shown_texts() | key_texts()
    assert len(texts) > 5000
    wrong = {place: found[0] for place, text in texts.items() if (found := OF_A_CLONE.search(text))}
    assert {place: it for place, it in wrong.items() if "arl_start" not in place} == {}


def test_every_place_in_the_pages_that_a_text_names_is_there():
    texts = shown_texts() | key_texts() | {row.name: row.summary for row in all_commands()}
    known = {page.name: {it.anchor for it in page.sections} for page in all_pages()}
    named = {(place, *hit) for place, text in texts.items() for hit in PLACE.findall(text)}
    assert len(named) > 20
    wrong = [(p, a, b) for p, a, b in named if a not in known or (b and b not in known[a])]
    assert wrong == []


@cases("title, anchor", [("`algo.kl`: a term", "algokl-a-term"), ("What is it?", "what-is-it")])
def test_anchors_are_those_of_links(title, anchor):
    assert anchor_of(title) == anchor
