"""The keys that packages add to a section: which, in which place, and what of them is left out."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import model_validator

from agentgym_rl.core.added_keys import ObjectiveKeys, PlayKeys, with_added_keys
from agentgym_rl.core.section import Needs, Section
from tests.kit.extension import install

THEIRS = """
from pydantic import model_validator
from agentgym_rl.core.section import Needs, Section

class Saw(Section):
    after = "wood"
    needs = (Needs("teeth", "wood", "'oak'"),)
    absent = {"chainsaw": "it is too loud"}

    teeth: int = 3
    steel: str = "hard"

    def conflicts(self, config):
        yield f"a saw of {self.teeth} teeth"

class Handle(Section):
    after = "teeth"
    handle: str = "ash"

class Glue(Section):
    glue: bool = True

class Oil(Section):
    after = "nowhere"
    oil: float = 0.5

class Clash(Section):
    free: int = 1
    wood: str = "theirs"

class ClashOfChecks(Section):
    free: int = 1

    @model_validator(mode="after")
    def _dry(self):
        return self

class OwnCheck(Section):
    hammer: int = 1

    @model_validator(mode="after")
    def _heavy(self):
        if self.hammer > 5:
            raise ValueError("a hammer above 5")
        return self

class AgainCheck(OwnCheck):
    nails: int = 1

class AgainKey(Section):
    hammer: int = 2

NUMBER = 7
"""


@pytest.fixture
def shed(tmp_path, monkeypatch):
    """Return a function that makes the section `shed` with these entry points' keys."""

    def make(points: dict[str, str], *, place: str = "shed", theirs: str = "theirs_shed"):
        named = {name: f"{theirs}:{value}" for name, value in points.items()}
        folder = install(tmp_path / "theirs", {"theirs_shed": THEIRS}, {"keys": named})
        monkeypatch.syspath_prepend(str(folder))

        class Shed(Section):
            """A shed."""

            needs = (Needs("width", "wood", "set"),)
            absent: ClassVar = {"door": "it is open"}

            wood: str = "oak"
            width: int = 2
            height: int = 3

            @model_validator(mode="after")
            def _dry(self):
                return self

            def conflicts(self, config):
                yield f"a shed of {self.wood}"

        return with_added_keys(place)(Shed)

    yield make
    sys.modules.pop("theirs_shed", None)


def keys(kind: type[Section]) -> list[str]:
    return list(kind.model_fields)


def test_keys_stand_in_their_places_and_the_others_last(shed):
    kind = shed({"shed.teeth": "Saw", "shed.glue": "Glue", "shed.oil": "Oil", "shed.steel": "Saw"})
    assert keys(kind) == ["wood", "teeth", "steel", "width", "height", "glue", "oil"]
    assert [part.__name__ for part in kind.added] == ["Glue", "Oil", "Saw"]
    assert (kind.__name__, kind.__doc__, kind.added_to) == ("Shed", "A shed.", "shed.")
    made = kind.model_validate({"teeth": 5})
    assert list(made.model_dump()) == keys(kind)
    assert made.model_dump() == {
        **{"wood": "oak", "teeth": 5, "steel": "hard", "width": 2, "height": 3},
        **{"glue": True, "oil": 0.5},
    }
    with pytest.raises(ValueError, match="nails"):
        kind.model_validate({"nails": 5})


def test_rules_and_conflicts_are_those_of_the_section_and_of_its_parts(shed):
    kind = shed({"shed.teeth": "Saw", "shed.hammer": "OwnCheck"})
    assert [rule.key for rule in kind.needs] == ["width", "teeth"]
    assert kind.absent == {"door": "it is open", "chainsaw": "it is too loud"}
    others: Any = SimpleNamespace()
    assert [*kind().conflicts(others)] == ["a shed of oak", "a saw of 3 teeth"]
    with pytest.raises(ValueError, match="a hammer above 5"):
        kind.model_validate({"hammer": 6})


def test_a_key_may_stand_behind_that_of_another_package(shed):
    kind = shed({"shed.handle": "Handle", "shed.teeth": "Saw", "shed.glue": "Glue"})
    assert keys(kind) == ["wood", "teeth", "handle", "steel", "width", "height", "glue"]


def test_only_keys_right_below_a_place_are_added_to_it(shed):
    kind = shed({"shed.glue": "Glue", "shed.in.oil": "Oil", "oil": "Oil", "sheds.teeth": "Saw"})
    assert keys(kind) == ["wood", "width", "height", "glue"]


def test_the_configuration_itself_takes_names_without_a_dot(shed):
    kind = shed({"glue": "Glue", "shed.oil": "Oil"}, place="")
    assert kind.added_to == ""
    assert "glue" in keys(kind)
    assert "oil" not in keys(kind)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("shed.free", "Clash", "'shed.free' of theirs_shed has wood, as test_added_keys does"),
        ("shed.free", "ClashOfChecks", "has _dry, as test_added_keys does; give it other names"),
        ("shed.free", "NUMBER", "'shed.free' is 7; expected a subclass of agentgym_rl.config.Sec"),
        ("shed.free", "Absent", "cannot be imported: AttributeError"),
        ("shed.hammer2", "AgainKey", "has hammer, as theirs_shed does"),
        ("shed.nails", "AgainCheck", "has _heavy, hammer, as theirs_shed does"),
    ],
)
def test_what_cannot_be_added_is_left_out_with_a_warning(shed, caplog, name, value, said):
    kind = shed({name: value, "shed.glue": "Glue", "shed.hammer": "OwnCheck"})
    assert keys(kind) == ["wood", "width", "height", "glue", "hammer"]
    assert said in caplog.text.replace("tests.core.", "")
    assert caplog.text.count("left out") == 1
    assert kind().model_dump()["wood"] == "oak"


def test_keys_of_this_distribution_come_before_those_of_others(shed, tmp_path, monkeypatch):
    """Theirs is first by its name; ours has the same key."""
    ours = install(tmp_path / "ours", {}, {"keys": {"shed.zeal": "theirs_shed:OwnCheck"}})
    (ours / "ours-1.0.dist-info" / "METADATA").write_text("Name: agentgym-rl\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(ours))
    kind = shed({"shed.again": "AgainKey", "shed.glue": "Glue"})
    assert [part.__name__ for part in kind.added] == ["OwnCheck", "Glue"]
    assert kind().model_dump()["hammer"] == 1


def test_keys_that_add_nothing_have_these_values():
    found = ObjectiveKeys()
    assert (found.terms, found.other_models, found.watches()) == ({}, [], [])
    assert (found.uses_every_row, found.needs_batch, found.reward_factor) == (False, False, 1.0)
    assert found.of_task("e", {}) == {}
    assert found.trains_policy(0) is True
    play = PlayKeys()
    assert (play.other_engines, play.player_processes) == ([], (0, 0))
    assert ([*play.refused_for_clients()], [*play.not_simulated()]) == ([], [])
