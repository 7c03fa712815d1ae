"""Members of registries: found by entry points, imported when used, named in errors."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rl.core import ConfigError, extension_names, extensions, load_extension
from agentgym_rl.core.extensions import register_extension
from tests.kit.extension import install


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    points = {"stones": {"flint": "theirs_mod:FLINT", "gone": "not_here:X", "dud": "theirs_bad:X"}}
    modules = {"theirs_mod": "FLINT = 'hard'\n", "theirs_bad": "raise RuntimeError('boom')\n"}
    monkeypatch.syspath_prepend(str(install(tmp_path / "theirs", modules, points)))
    monkeypatch.setattr(extensions, "_registered", {})
    yield
    sys.modules.pop("theirs_mod", None)


def test_a_member_is_imported_when_it_is_used(theirs):
    assert extension_names("stones") == ["dud", "flint", "gone"]
    assert "theirs_mod" not in sys.modules
    assert load_extension("stones", "flint") == "hard"


def test_a_program_registers_a_member_of_its_own(theirs):
    register_extension("stones", "opal", 7)
    assert load_extension("stones", "opal") == 7
    assert "opal" in extension_names("stones")
    with pytest.raises(ConfigError, match="has a member 'flint' already"):
        register_extension("stones", "flint", 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [("flnt", "did you mean flint"), ("gone", "not_here"), ("dud", "RuntimeError: boom")],
)
def test_what_cannot_be_loaded_is_named(theirs, name, said):
    with pytest.raises(ConfigError, match=said):
        load_extension("stones", name)


def test_a_package_of_ours_that_was_left_out_has_no_members(tmp_path, monkeypatch):
    folder = install(tmp_path / "agentgym_rl", {}, {"stones": {"a": "left_out_of_it:A"}})
    (folder / "agentgym_rl-1.0.dist-info" / "METADATA").write_text("Name: agentgym-rl\n")
    monkeypatch.syspath_prepend(str(folder))
    assert extension_names("stones") == []


def test_a_name_of_ours_is_not_taken_by_another_package(tmp_path, monkeypatch):
    members = {"commands": {"plan": "theirs:X", "sing": "theirs:Y"}}
    theirs = install(tmp_path / "theirs", {}, members)
    monkeypatch.syspath_prepend(str(theirs))
    points = extensions.entry_points_of("commands")
    assert (points["plan"].value, points["sing"].value) == ("arl_plan.plan:COMMAND", "theirs:Y")
    ((left_out, taken),) = extensions.shadowed("commands")
    assert (left_out.value, taken.value) == ("theirs:X", "arl_plan.plan:COMMAND")


def test_a_checkout_that_is_not_installed_has_its_entry_points():
    root = Path(__file__).parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r})\n"
    code += "from agentgym_rl.core.extensions import extension_names as names\n"
    code += "print(*names('commands'), *names('envs'), *names('none'))"
    argv = [sys.executable, "-I", "-S", "-c", code]  # without the folder of installed packages
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    kernel = ["engine", "eval", "list", "train", "trainer"]
    assert done.stdout.split() == kernel
