"""The names of a package that load on first use."""

import sys

import pytest

from tests.kit.extension import install

INIT = """from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tools import hammer as hammer
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""


@pytest.fixture
def shed(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_shed"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "tools.py").write_text("hammer, saw = 1, 2")
    monkeypatch.syspath_prepend(str(tmp_path))
    import lazy_shed

    yield lazy_shed
    for name in ("lazy_shed", "lazy_shed.tools"):
        sys.modules.pop(name, None)


def test_a_name_loads_its_module_on_first_use(shed):
    assert "lazy_shed.tools" not in sys.modules
    assert (shed.hammer, dir(shed)) == (1, ["hammer"])
    assert "lazy_shed.tools" in sys.modules


def test_what_stands_in_the_module_now_counts(shed, monkeypatch):
    assert shed.hammer == 1
    monkeypatch.setattr("lazy_shed.tools.hammer", 3)
    assert shed.hammer == 3


def test_other_names_are_missing_and_modules_are_found(shed):
    with pytest.raises(AttributeError, match="'lazy_shed' has no attribute 'saw'"):
        _ = shed.saw
    with pytest.raises(ImportError, match="cannot import name 'saw'"):
        from lazy_shed import saw as saw
    from lazy_shed import tools

    assert tools.saw == 2


def test_names_of_other_modules_and_of_extensions_are_listed_too(tmp_path, monkeypatch):
    listed = (
        '"""    from .none import listed as listed"""\n'
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n"
        "    from lazy_far.inner import nail as nail\n"
        "    from .tools import saw\n\n"
        "from agentgym_rl.core.lazy import lazy_names\n\n"
        '_more = ("anvil", "dud")\n'
        "__getattr__, __dir__, __all__ = lazy_names(__name__, of_extensions=_more)\n"
    )
    points = {"names": {"anvil": "lazy_far.inner:nail", "dud": "lazy_far.gone:X"}}
    monkeypatch.syspath_prepend(str(install(tmp_path / "theirs", {}, points)))
    for name, text in (("lazy_near", listed), ("lazy_far", "")):
        (tmp_path / "theirs" / name).mkdir()
        (tmp_path / "theirs" / name / "__init__.py").write_text(text)
    (tmp_path / "theirs" / "lazy_far" / "inner.py").write_text("nail = 5")
    import lazy_near

    assert dir(lazy_near) == lazy_near.__all__ == ["anvil", "dud", "nail"]
    assert "lazy_far" not in sys.modules
    assert (lazy_near.nail, lazy_near.anvil) == (5, 5)
    with pytest.raises(
        AttributeError, match=r"'lazy_near' has no attribute 'dud': .*lazy_far.gone"
    ):
        _ = lazy_near.dud
    for name in ("lazy_near", "lazy_far", "lazy_far.inner"):
        sys.modules.pop(name, None)
