"""What is installed in the folders that programs see is not among what they see."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from arl_sandboxes.local import LocalBackend
from arl_sandboxes.local.hidden_paths import hidden_paths

from tests.kit.cases import cases

pytestmark = pytest.mark.slow

SYSTEM_PYTHON = "/usr/bin/python3"
PLANTED, ANSWER = "planted_answer", "the-answer-is-42"
READ = """
import os
for folder, _, names in os.walk(TOP, followlinks=False):
    for name in names:
        path = os.path.join(folder, name)
        try: text = open(path, errors="replace").read()
        except OSError: continue
        if "the-answer-is" in text: print("read", path)
import importlib, sys
sys.path += [folder for folder, _, _ in os.walk(TOP) if folder.endswith("-packages")]
try: print("imported", importlib.import_module("planted_answer"))
except (ImportError, OSError): pass
import colorsys, sqlite3, zoneinfo
print("fine", sys.base_prefix)
"""


def made(top: Path, *paths: str) -> list[str]:
    for path in paths:
        (top / path).mkdir(parents=True)
        (top / path / f"{PLANTED}.py").write_text(f"answer = {ANSWER!r}")
    return [str(top / path) for path in paths]


# ---------------------------------------------------------------------- which
@cases(
    "path",
    [
        "lib/python3.12/site-packages",
        "lib/python3/dist-packages",
        "lib64/python3.12/site-packages",
        "local/lib/python3.12/dist-packages",
        "local/venv/lib/python3.12/site-packages",
        "share/venv/lib/python3.12/site-packages",
        "src",
        "local/src",
        "envs",
        "pkgs",
    ],
)
def test_installed_packages_are_hidden(tmp_path, path):
    made(tmp_path, path, "lib/python3.12/json", "bin")
    assert hidden_paths([str(tmp_path)], ["/usr/bin/python3"]) == [str(tmp_path / path)]


def test_what_is_in_something_hidden_is_not_named(tmp_path):
    paths = ("src/x/site-packages", "src-2/site-packages", "src")
    for path in paths:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    found = hidden_paths([str(tmp_path)], [])
    assert found == [str(tmp_path / "src"), str(tmp_path / "src-2/site-packages")]


def test_where_this_process_imports_from_is_hidden(tmp_path, monkeypatch):
    checkout, binaries = made(tmp_path, "opt/checkout", "bin")
    monkeypatch.syspath_prepend(binaries)  # of a command's own folder
    monkeypatch.syspath_prepend(checkout)
    assert hidden_paths([str(tmp_path)], []) == [checkout]
    assert hidden_paths([str(tmp_path / "elsewhere")], []) == []


def test_our_own_packages_are_hidden_where_their_folder_cannot_be(tmp_path):
    library = Path(__file__).parents[2]
    found = hidden_paths([str(library)], [])
    assert {f"{library}/agentgym_rl", f"{library}/envs"} <= set(found)
    assert str(library) not in found


def test_what_the_interpreter_needs_is_not_hidden(tmp_path):
    src, packages = made(tmp_path, "src/python", "src/python/lib/site-packages")
    assert hidden_paths([str(tmp_path)], [src]) == [packages]
    assert hidden_paths([str(tmp_path)], []) == [str(tmp_path / "src")]


def test_links_are_not_followed(tmp_path):
    (target,) = made(tmp_path, "elsewhere/site-packages")
    tree = tmp_path / "tree"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "site-packages").symlink_to(target)
    (tree / "lib" / "loop").symlink_to(tree)
    assert hidden_paths([str(tree)], []) == []
    assert hidden_paths([str(tmp_path)], []) == [target]


# ---------------------------------------------------------------------- in sandboxes
@pytest.fixture
def prefix():
    """An interpreter of its own, with an answer among its packages; readable by everybody."""
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"there is no {SYSTEM_PYTHON}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # /tmp is another in a sandbox
        top = Path(folder)
        top.chmod(0o755)
        said = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-S", "-c", "import os; print(os.__file__)"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        library = Path(said.stdout).parent
        inner = top / "lib" / library.name
        made(top, f"lib/{library.name}/site-packages", "envs/e/lib/python3.12/site-packages", "src")
        (inner / "site-packages" / "x.dist-info").mkdir()
        (inner / "site-packages" / "x.dist-info" / "direct_url.json").write_text(ANSWER)
        (inner / "site-packages" / "x.pth").write_text(ANSWER)
        for path in library.iterdir():
            (inner / path.name).symlink_to(path)
        (top / "bin").mkdir()
        shutil.copy(os.path.realpath(SYSTEM_PYTHON), top / "bin" / "python3")
        yield top


def shown(prefix: Path, isolation: str, **options) -> str:
    async def scenario() -> str:
        backend = LocalBackend(
            slots=1, python=str(prefix / "bin/python3"), isolation=isolation, **options
        )
        async with backend, await backend.create() as sandbox:
            result = await sandbox.run_python(READ.replace("TOP", repr(str(prefix))))
            return result.stdout_text + result.stderr_text

    return asyncio.run(scenario())


ISOLATIONS = ["namespaces", pytest.param("landlock", marks=pytest.mark.slow)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_programs_read_nothing_that_is_installed_beside_the_interpreter(prefix, isolation):
    assert set(shown(prefix, isolation).splitlines()) == {f"fine {prefix}"}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_without_that_they_would(prefix, isolation, monkeypatch):
    """The control: it is there to be read."""
    monkeypatch.setattr("arl_sandboxes.local.interpreter.hidden", lambda *_: [])
    text = shown(prefix, isolation)
    assert text.count("read /") == 5
    assert f"imported <module '{PLANTED}'" in text


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_packages_that_were_asked_for_are_seen(prefix, isolation, monkeypatch):
    folder = next(prefix.glob("lib/*/site-packages"))
    (folder / "wanted").mkdir()
    (folder / "wanted" / "__init__.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(str(folder))
    text = shown(prefix, isolation, packages=("wanted",), preimport=["wanted"])
    assert f"fine {prefix}" in text
    assert PLANTED not in text
    assert "wanted" not in sys.modules
