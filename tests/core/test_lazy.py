"""The names of a package that load on first use."""

import sys

import pytest

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
