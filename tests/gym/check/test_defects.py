"""Good environments pass every criterion; one planted defect fails its criterion and no other."""

import asyncio

import defects  # type: ignore[import-not-found]
import pytest
from arl_check import support
from arl_check.criteria import CRITERIA
from arl_check.report import Outcome, Report

from agentgym_rl import EnvSpec, check_env
from agentgym_rl.core import SandboxError
from tests.kit.cases import cases

PLANTED = {
    name: found
    for name, found in vars(defects).items()
    if isinstance(found, type) and "planted" in vars(found)
}
NUM_PARTS = 5
"""Each takes seconds, so that workers of pytest can share them."""


def checked(name: str, **given) -> Report:
    return asyncio.run(check_env(name, episodes=4, **given))


def spec_of(name: str) -> EnvSpec:
    path = f"defects:{name}"
    if name in ("StepsBeforeReset", "StepsOn"):
        return defects.BareSpec(id=path, entry_point=path)
    kwargs = {"Unsendable": {"judge": {1, 2}}, "OwnOptions": {"level": 2}}.get(name, {})
    return EnvSpec(id=path, entry_point=path, kwargs=kwargs)


SKIPPED = {"tool-results", "call-everything", "gold"}
GOOD = {
    "Toy": set(),
    "SyncToy": set(),
    "ThreadedToy": set(),
    "OwnWords": SKIPPED,
    "OneGame": SKIPPED | {"seeds-differ", "splits-disjoint"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_a_good_environment_fails_nothing(name):
    report = checked(f"toys:{name}")
    assert report.failed == [], str(report)
    assert {each.id for each in report.results if each.outcome is Outcome.SKIPPED} == GOOD[name]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_a_planted_defect_fails_its_criterion_alone(part, monkeypatch, subtests):
    monkeypatch.setattr(support, "CLOSE_S", 1.0)
    for name in [*PLANTED][part::NUM_PARTS]:
        with subtests.test(name):
            report = checked(spec_of(name))
            assert report.failed == [PLANTED[name].planted], str(report)
            assert not report.passed


def test_a_close_that_hangs_ends_the_baselines(monkeypatch):
    monkeypatch.setattr(support, "CLOSE_S", 0.1)
    (oracle, *_) = checked("defects:HangsInClose", only=["signature"], tasks=2).tallies
    assert (oracle.episodes, oracle.passed) == (2, True)


@cases(
    "given",
    [{"only": ["event-loop"]}, {"only": ["signature"], "tasks": 2}],
    ids=["criterion", "baselines"],
)
def test_infrastructure_that_fails_in_a_group_is_raised_itself(given):
    with pytest.raises(SandboxError, match="gone"):
        checked("defects:SandboxGone", **given)


@cases(
    "name, id, found, fix",
    [
        ("TwoNumbers", "step-tuple", "TwoNumbers.finish returned (0.0, True)", "from `finish`"),
        ("SecondTable", "reset-tuple", "table orders already exists", "tables and connections of"),
        ("WrongColumn", "tool-results", "no such column: cost (", "is a ToolError(text)"),
        ("AsksOneOfNine", "splits-disjoint", "9 of 9 openings of", "% 2 == (task.split =="),
        ("Unjudgeable", "signature", "could not be judged: ", "correct the code that raised"),
    ],
)
def test_the_advice_is_that_for_the_cause(name, id, found, fix):
    results = {each.id: each for each in checked(f"defects:{name}", only=[id]).results}
    assert found in results[id].detail
    assert fix in results[id].fix


def test_openings_may_be_alike_where_the_tasks_behind_them_are_not():
    report = checked("defects:OneOpeningForMany", only=["splits-disjoint"])
    assert report.passed, str(report)


def test_every_criterion_has_a_planted_defect():
    assert {found.planted for found in PLANTED.values()} == {each.id for each in CRITERIA}


def test_what_a_criterion_needs_stands_before_it():
    seen: set[str] = set()
    for each in CRITERIA:
        assert set(each.needs) <= seen, each.id
        seen.add(each.id)
