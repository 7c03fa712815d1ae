"""How the site is made of the pages; `make docs` builds it whole."""

import re

import pytest

from agentgym_rl.config import RolloutConfig
from tests.docs.blocks import ROOT, load_script
from tests.docs.test_blocks import keys

pages, built = load_script("docs/pages"), load_script("docs/built")
configuration = load_script("docs/configuration")


README = "[one](docs/one.md#b)\n```text\n[no](link.md)\n```\n[d](docs)\n"


@pytest.fixture
def repository(tmp_path):
    """A README and one page, and a file that is none."""
    root = tmp_path / "root"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "code.py").write_text("x = 1\n")
    (root / "docs" / "one.md").write_text("[me](../README.md#a) ![p](p.png) [c](../code.py)\n")
    (root / "docs" / "deep" / "two.md").write_text("[one](../one.md) [out](https://x.org/)\n")
    (root / "docs" / "p.png").write_bytes(b"")
    (root / "README.md").write_text(README)
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (root / name).write_text("[r](README.md)\n")
    return root


def test_links_lead_to_the_same_in_the_site(repository, tmp_path):
    to = tmp_path / "pages"
    assert pages.write_pages(repository, to) == 7
    assert (to / "index.md").read_text().splitlines()[0] == "[one](one.md#b)"
    assert "[no](link.md)" in (to / "index.md").read_text()
    assert (to / "one.md").read_text() == ("[me](index.md#a) ![p](p.png) [c](source/code.py.md)\n")
    assert (to / "deep" / "two.md").read_text() == "[one](../one.md) [out](https://x.org/)\n"
    assert "x = 1" in (to / "source" / "code.py.md").read_text()
    assert "one.md" in (to / "source" / "docs.md").read_text()
    assert (to / "p.png").exists()


def test_a_link_that_leads_nowhere_is_named(repository, tmp_path):
    (repository / "docs" / "one.md").write_text("[a](gone.md) [b](../gone.py)\n")
    with pytest.raises(pages.DeadLinks, match=r"one\.md: gone\.md\n.*one\.md: \.\./gone\.py"):
        pages.write_pages(repository, tmp_path / "pages")


def test_our_own_pages_have_no_dead_link_and_are_all_in_the_contents(tmp_path):
    pages.write_pages(ROOT, tmp_path / "pages")
    contents = (ROOT / "mkdocs.yml").read_text()
    for file in sorted((ROOT / "docs").rglob("*.md")):
        assert f"- {file.relative_to(ROOT / 'docs')}\n" in contents


def test_a_search_ranks_the_pages_of_the_first_days_first_and_leaves_records_out(tmp_path):
    pages.write_pages(ROOT, tmp_path)
    for name in pages.FIRST_DAYS:
        assert (tmp_path / f"{name}.md").read_text().startswith("---\nsearch: {boost: 4}\n---\n")
    for name in pages.RECORDS:
        assert (tmp_path / f"{name}.md").read_text().startswith("---\nsearch: {exclude: true}")


def test_every_key_has_an_anchor_and_its_whole_description():
    page = configuration.configuration()
    anchors = re.findall(r"^###? .*\{ #([\w.]+) \}$", page, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) - {"keys"} == keys()
    lines = page.partition("### `rollout.trial_s` { #rollout.trial_s }")[2].splitlines()[1:]
    about = " ".join((RolloutConfig.model_fields["trial_s"].description or "").split())
    assert lines[1] == about.replace("*", "\\*")


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<script src="https://cdn.org/a.js"></script>', "loads https://cdn.org/a.js"),
        ('<link rel="stylesheet" href="//fonts.org/f.css">', "loads //fonts.org/f.css"),
        ('<img src="gone.png">', "gone.png is not there"),
    ],
)
def test_what_a_built_page_would_load_is_found(html, said, tmp_path):
    (tmp_path / "a.html").write_text(html)
    assert built.problems(tmp_path) == [f"a.html: {said}"]


def test_links_to_follow_are_no_load(tmp_path):
    (tmp_path / "a.html").write_text('<a href="https://x.org">x</a><img src="data:image/png,1">')
    assert built.problems(tmp_path) == []
