"""`arl check` as typed, and what its scripted agents count."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toys  # type: ignore[import-not-found]
from arl_check.criteria import CRITERIA

from agentgym_rl import check_env
from agentgym_rl.core import ConfigError
from tests.e2e import forked
from tests.kit.cases import cases

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
QUICK = "--only=reset-tuple,tools"


def arl(*argv: str) -> subprocess.CompletedProcess[str]:
    """In the folder of the planted environments."""
    path = os.pathsep.join([entry for entry in sys.path if entry])
    return forked.arl("check", *argv, env={**os.environ, "PYTHONPATH": path}, folder=HERE)


def test_what_passes_says_so_and_exits_with_0():
    done = arl("toys:Toy", QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok   signature\n")
    assert "toys:Toy passes: 4 passed, 0 failed, 0 skipped" in done.stdout


def test_what_fails_says_what_to_do_and_exits_with_1():
    done = arl("defects:BadSchema", QUICK)
    assert done.returncode == 1
    assert "FAIL tools\n     found: tool 0: add: parameters requires ['a']" in done.stdout
    assert "     to do: agentgym_rl.ToolEnv makes schemas" in done.stdout


def test_a_coroutine_that_is_not_awaited_is_named_once():
    done = arl("defects:AwaitsNothing", "--only=step-tuple")
    assert done.returncode == 1
    told = "coroutine 'AwaitsNothing.score' was never awaited"
    assert done.stderr.count(told) == 1
    assert f"{told}: write `await` before its call" in done.stderr


def test_the_report_is_json():
    done = arl("defects:BadSchema", "--only=tool-results", "--tasks=3", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["env"], report["passed"]) == ("defects:BadSchema", False)
    by_id = {each["id"]: each for each in report["criteria"]}
    assert by_id["tools"]["outcome"] == "failed"
    assert by_id["tool-results"]["outcome"] == "skipped"
    assert by_id["tool-results"]["detail"] == "first put right: tools"
    assert report["counts"]["failed"] == 1
    assert report["agents"][0]["agent"] == "oracle"
    assert report["agents"][0]["num_at_most"] == 3


def test_options_reach_the_environment_and_its_tasks():
    done = arl("math", QUICK, "--env.options.level=9")
    assert done.returncode == 2
    assert "no level 9" in done.stderr


@cases(
    "argv, said",
    [
        (["mat"], "no env is called 'mat'; did you mean math-v0?"),
        (["math", "--only=gld"], "no criterion is called 'gld'"),
        (["math", "--episodes=0"], "--episodes 0"),
        (["toys:Nothing"], "cannot import 'toys:Nothing'"),
        ([], "arl check ENV: which environment?"),
    ],
)
def test_wrong_use_exits_with_2(argv, said):
    done = arl(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_the_criteria_can_be_listed():
    done = arl("--list")
    assert done.returncode == 0
    assert all(f"\n{each.id} " in f"\n{done.stdout}" for each in CRITERIA)
    rows = json.loads(arl("--list", "--json").stdout)["rows"]
    assert [row["id"] for row in rows] == [each.id for each in CRITERIA]


def tallies(name: str, tasks: int = 20) -> dict:
    report = asyncio.run(check_env(name, tasks=tasks, only=["signature"]))
    return {each.agent: each for each in report.tallies}


def test_agents_without_a_model_are_counted():
    found = tallies("toys:Toy")
    assert list(found) == ["oracle", "no-op", "echo", "repeat-question", "call-everything"]
    assert (found["oracle"].num_at_most, found["oracle"].mean_reward) == (20, 1.0)
    assert {each.num_paid for agent, each in found.items() if agent != "oracle"} == {0}
    assert all(each.passed and each.episodes == 20 for each in found.values())


@cases(
    "name, agent",
    [("WrongGold", "oracle"), ("PaysSilence", "no-op"), ("PaysCalls", "call-everything")],
)
def test_an_agent_that_is_paid_wrongly_fails_the_check(name, agent):
    failed = [each.agent for each in tallies(f"defects:{name}").values() if not each.passed]
    assert failed == [agent]


def test_an_environment_that_raises_fails_with_its_first_error():
    broken = tallies("defects:RaisesAtAll")
    assert not any(each.passed for each in broken.values())
    assert "RuntimeError: at all" in broken["no-op"].first_error


def test_without_solve_there_is_no_oracle_and_tasks_may_be_few():
    found = tallies("toys:OneGame")
    assert "oracle" not in found
    assert found["no-op"].episodes == 1


def test_an_unknown_criterion_is_an_error_before_anything_is_made():
    with pytest.raises(ConfigError, match="'tols'; did you mean tools"):
        asyncio.run(check_env("toys:Toy", only=["tols"]))


def test_a_class_may_be_given_itself():
    report = asyncio.run(check_env(toys.Toy, only=["tools"]))
    assert (report.env, report.passed) == ("toys:Toy", True)
    assert "tools" in str(report)
