"""The map of the package names files that are there, and every package."""

import re

from tests.docs.blocks import ROOT

PACKAGE = ROOT / "agentgym_rl"
MAP = (ROOT / "docs" / "map.md").read_text()
ROW = re.compile(r"^\| (?!I want|---)(.+) \| (.+) \|$", re.MULTILINE)


def named_files() -> list[str]:
    """Return the paths of all rows, in their order."""
    return [path for _, files in ROW.findall(MAP) for path in re.findall(r"`([^`]+)`", files)]


def test_every_file_on_the_map_is_there():
    paths = named_files()
    missing = [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())]
    assert missing == []
    assert len(paths) > 120
    assert len(ROW.findall(MAP)) <= 80, "a page of a package says the rest"


def test_every_row_of_the_map_names_a_file():
    assert [words for words, files in ROW.findall(MAP) if not re.search(r"`[^`]+`", files)] == []


def test_every_package_is_on_the_map():
    packages = {entry.parent.name for entry in PACKAGE.glob("*/__init__.py")}
    packages |= {entry.name for entry in PACKAGE.iterdir() if any(entry.glob("*.py"))}
    on_the_map = {path.partition("/")[0] for path in named_files()}
    assert packages - on_the_map == set()
