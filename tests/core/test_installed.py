"""The command that adds an extra to the installation at hand, and packages that are too old."""

import importlib
import json
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from agentgym_rl.core import install_command, installed, outdated
from tests.docs.blocks import PAGES, ROOT
from tests.kit.cases import cases


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Replace the installed package by one with this metadata and this record of its source."""

    def install(requires=(), **record: object) -> None:
        folder = tmp_path / "agentgym_rl-9.9.dist-info"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", "Name: agentgym-rl", "Version: 9.9"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        if record:
            (folder / "direct_url.json").write_text(json.dumps(record))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        importlib.invalidate_caches()

    return install


def test_an_editable_clone(install, tmp_path):
    install(url=tmp_path.as_uri(), dir_info={"editable": True})
    assert install_command("mcp") == f"pip install -e '{tmp_path}[mcp]'"


def test_a_folder_that_was_copied(install, tmp_path):
    install(url=tmp_path.as_uri(), dir_info={})
    assert install_command("mcp") == f"pip install '{tmp_path}[mcp]'"


def test_a_wheel(install, tmp_path):
    wheel = tmp_path / "agentgym_rl-9.9-py3-none-any.whl"
    wheel.touch()
    install(url=wheel.as_uri(), archive_info={})
    assert install_command("hf") == f"pip install 'agentgym-rl[hf] @ {wheel.as_uri()}'"


@cases("named", [{"requested_revision": "main"}, {}])
def test_a_git_url(install, named):
    commit = {"vcs": "git", "commit_id": "4c0ffee"} | named
    install(url="https://host/repo.git", vcs_info=commit)
    revision = named.get("requested_revision", "4c0ffee")
    expected = f"pip install 'agentgym-rl[hf] @ git+https://host/repo.git@{revision}'"
    assert install_command("hf") == expected


IN_A_FOLDER = {"url": "file:///", "vcs_info": {"vcs": "git", "commit_id": "4c0ffee"}}
GONE = {"url": "file:///nowhere/x.whl", "archive_info": {}}


@cases("record", [{}, GONE, IN_A_FOLDER])
def test_of_an_unknown_source_the_packages_themselves(install, monkeypatch, tmp_path, record):
    monkeypatch.setattr(installed, "_CHECKOUT", tmp_path)
    lines = ['mcp<3,>=2.3; extra == "mcp"', "gguf (>=0.17) ; extra == 'real'", "numpy"]
    install(lines, **record)
    assert install_command("mcp") == "pip install 'mcp<3,>=2.3'"
    assert install_command("real") == "pip install 'gguf(>=0.17)'"
    with pytest.raises(KeyError):
        install_command("hf")


def test_a_checkout_on_the_path(install, monkeypatch, tmp_path):
    install()
    assert install_command("mcp") == f"pip install -e '{ROOT}[mcp]'"


def test_packages_that_are_too_old_are_named(install):
    version = metadata.version("pydantic")
    install(["pydantic<3,>=2.99", "numpy>=1", "nothing-of-that-name>=1", 'rich>=99; extra == "x"'])
    assert outdated() == (
        f"pydantic {version} is installed, allowed is 'pydantic<3,>=2.99': pip install "
        "'pydantic<3,>=2.99'"
    )


def test_this_environment_has_no_outdated_package():
    assert outdated() == ""


FROM_AN_INDEX = re.compile(
    r"(?:pip install|uv add|uv pip install)\b[^\n`]*?[\s'\"]agentgym[-_]rl(?:\[[\w,{}-]*\])?"
    r"(?!\S*\.whl)(?!\[?[\w,-]*\]? @ )(?![\w-])|pypi\.org/project/agentgym"
)
HISTORY = ("CHANGELOG.md", "docs/decisions.md", "docs/measurements.md")


def test_a_promise_of_an_index_is_found():
    for text in (
        "pip install agentgym-rl",
        "`pip install 'agentgym-rl[mcp]'`",
        "uv add agentgym_rl",
        'pip install "agentgym-rl[{name}]"',
        "python -m pip install -U agentgym-rl",
        "https://pypi.org/project/agentgym-rl/",
    ):
        assert FROM_AN_INDEX.search(text), text
    for text in (
        "pip install 'agentgym-rl[mcp] @ git+URL@main'",
        "pip install 'agentgym-rl @ git+URL@main'",
        "pip install ./agentgym_rl-0.1.0-py3-none-any.whl",
        "pip install --no-deps agentgym_rl-*.whl",
    ):
        assert not FROM_AN_INDEX.search(text), text


def test_no_text_promises_that_the_package_is_on_an_index():
    folders = ("agentgym_rl", "envs", "agents", "sandboxes", "extensions", "examples", "scripts")
    kinds = {".py", ".md", ".toml", ".tmpl", ".txt", ".html", ".js", ".mjs"}
    files = [it for name in folders for it in (ROOT / name).rglob("*") if it.suffix in kinds]
    files += [page for page in PAGES if str(page.relative_to(ROOT)) not in HISTORY]
    assert len(files) > 500
    wrong = [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in files
        for found in FROM_AN_INDEX.finditer(file.read_text())
    ]
    assert wrong == []


def test_every_extra_is_on_the_page():
    page = Path(ROOT / "docs/install.md").read_text()
    for extra in metadata.metadata("agentgym-rl").get_all("Provides-Extra") or ():
        assert re.search(rf"^\|.*`{extra}`", page, re.MULTILINE), extra
