"""`arl eval --out`: every finished episode is kept, none is played twice, nothing is mixed up."""

import asyncio
import json
import signal
import socket
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_rl import Agent
from agentgym_rl.config import Config, load_config
from agentgym_rl.core import ConfigError, InfraError, Outcome, Task, TooManyErrors
from agentgym_rl.evaluate import EvalTarget, command
from agentgym_rl.evaluate.folder import open_folder, with_kept
from agentgym_rl.runtime import serving
from agentgym_rl.storage.run_list import summary
from tests.kit.groups import make_group
from tests.kit.someones_eval import QUICK, evaluate
from tests.kit.someones_model import SomeonesModel, gold, nonsense, refusing

pytestmark = pytest.mark.usefixtures("key")


@pytest.fixture
def port() -> int:
    """Where the model is: the same URL each time, or it would be another configuration."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def kept(out: Path) -> list[str]:
    with closing(sqlite3.connect(out / "episodes.db")) as db:
        return [name for (name,) in db.execute("SELECT episode_id FROM trajectories")]


def first_questions(model: SomeonesModel) -> set[str]:
    return {request["messages"][1]["content"] for request in model.requests}


def test_an_evaluation_goes_on_where_it_ended(tmp_path, port):
    perfect, out = gold(4), tmp_path / "e"
    asked: list[str] = []

    def until_the_third(messages):
        question = messages[1]["content"]
        asked.extend([question] if question not in asked else [])
        return (perfect if asked.index(question) < 2 else refusing(500))(messages)

    same = {"out": out, "port": port, "eval__max_concurrent": 1}
    with pytest.raises(InfraError):
        evaluate(until_the_third, **same)
    assert kept(out) == ["e0", "e1"]
    assert not (out / "result.json").exists()
    model = SomeonesModel(perfect)
    result = evaluate(None, model=model, **same)
    assert (result["reward"], result["resumed"], result["episodes"]) == (1.0, 2, 2)
    assert first_questions(model).isdisjoint(asked[:2])
    assert kept(out) == ["e0", "e1", "e2", "e3"]
    assert json.loads((out / "result.json").read_text())["reward"] == 1.0


def test_what_is_whole_asks_nobody(tmp_path, port):
    same = {"out": tmp_path / "e", "port": port, "eval__samples_per_task": 2}
    first = evaluate(gold(4), **same)
    model = SomeonesModel(nonsense)
    again = evaluate(None, model=model, eval__price_prompt=1, eval__price_completion=1, **same)
    assert not model.requests
    assert (again["reward"], again["pass_at"]) == (first["reward"], first["pass_at"])
    assert (again["resumed"], again["episodes"], first["cost_usd"]) == (8, 0, None)
    assert again["cost_usd"] > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eval.seed": 1}, "eval.seed is 1, not 0"),
        ({"eval.num_tasks": 5}, "eval.num_tasks is 5, not 4"),
        ({"model.path": "another"}, 'model.path is "another", not "someones/model"'),
        ({"agent.id": "single_turn"}, 'agent.id is "single_turn", not "react"'),
        ({"env.options": {"level": 2}}, r"env.options.level is 2, not unset"),
    ],
)
def test_another_configuration_is_refused_and_named(tmp_path, port, settings, said):
    evaluate(nonsense, out=tmp_path / "e", port=port)
    model = SomeonesModel(nonsense)
    with pytest.raises(ConfigError, match=said):
        evaluate(None, model=model, out=tmp_path / "e", port=port, **settings)
    assert not model.requests


def test_how_it_is_played_may_change(tmp_path, port):
    evaluate(nonsense, out=tmp_path / "e", port=port)
    more = {"eval__max_concurrent": 1, "logging__level": "error", "engine__max_retries": 3}
    assert evaluate(nonsense, out=tmp_path / "e", port=port, **more)["resumed"] == 4


def test_a_folder_is_written_by_one_alone(tmp_path):
    asked = EvalTarget(load_config(overrides=QUICK))
    with (
        open_folder(tmp_path, asked),
        pytest.raises(ConfigError, match="another `arl eval` uses this folder"),
        open_folder(tmp_path, asked),
    ):
        pass


def test_a_checkpoint_is_another_model(tmp_path):
    config = load_config()
    with open_folder(tmp_path, EvalTarget(config, Path("/run/checkpoints/step-1"))):
        pass
    with (
        pytest.raises(ConfigError, match="the checkpoint is /run/checkpoints/step-2, not /run/ch"),
        open_folder(tmp_path, EvalTarget(config, Path("/run/checkpoints/step-2"))),
    ):
        pass


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["holiday.jpg"], "not empty, and holds no evaluation"),
        (["config.toml", "episodes.db"], "is the folder of a training run"),
    ],
)
def test_other_folders_are_left_alone(tmp_path, names, said):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=said):
        evaluate(nonsense, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "lock") == names


async def _killed(model: SomeonesModel, port: int, argv: list[str], after: int) -> None:
    """Start the command, and kill it without warning once the model was asked so often."""
    async with serving(model, host="127.0.0.1", port=port), asyncio.timeout(240):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentgym_rl", *argv), stderr=asyncio.subprocess.DEVNULL
        )
        while len(model.requests) < after:
            assert process.returncode is None, "it ended by itself"
            await asyncio.sleep(0.01)
        process.kill()
        assert await process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_evaluation_plays_every_episode_once(tmp_path, port):
    out, tasks = tmp_path / "e", 200
    settings = QUICK | {"eval.num_tasks": tasks, "engine.base_url": f"http://127.0.0.1:{port}/v1"}
    flags = [f"--{key}={value}" for key, value in settings.items()]
    perfect = gold(tasks)
    first = SomeonesModel(perfect)
    asyncio.run(_killed(first, port, ["eval", "--env=math", f"--out={out}", *flags], after=120))
    before = kept(out)
    assert 0 < len(before) < tasks
    second = SomeonesModel(perfect)
    result = evaluate(None, model=second, port=port, out=out, eval__num_tasks=tasks)
    assert (result["num_episodes"], result["resumed"]) == (tasks, len(before))
    assert sorted(kept(out)) == sorted(f"e{index}" for index in range(tasks))
    # nobody who finished is asked about again: those in flight at the kill alone are in both
    both = first_questions(first) & first_questions(second)
    assert len(both) <= int(QUICK["eval.max_concurrent"])


def test_a_continued_evaluation_keeps_the_date_in_its_prompts(tmp_path, monkeypatch):
    async def dated(asked, *, say):
        chosen = asked.config.gateway.date or "2027-01-01"
        gateway = asked.config.gateway.model_copy(update={"date": chosen})
        return replace(asked, config=asked.config.model_copy(update={"gateway": gateway}))

    monkeypatch.setattr(command, "_checked", dated)
    asked, mine = (
        EvalTarget(Config()),
        EvalTarget(load_config(None, {"gateway.date": "2020-01-01"})),
    )
    for text, one, expected in (
        (None, asked, ["2027-01-01"] * 2),
        ('[gateway]\ndate = "2026-01-02"\n', asked, ["2026-01-02"] * 2),
        ('[gateway]\ndate = "2026-01-02"\n', mine, ["2020-01-01", "2026-01-02"]),
    ):
        if text is not None:
            (tmp_path / "config.toml").write_text(text)
        places = [(one, tmp_path), (asked, tmp_path / "other")]
        found = asyncio.run(command._all_checked(places, say=print))
        assert [each.config.gateway.date for each in found] == expected


def test_an_evaluation_of_an_earlier_version_is_continued_as_it_was(tmp_path):
    (tmp_path / "evaluated.json").touch()
    then = '[algo]\nclip_low = 0.2\n[env]\nid = "math"\n[env.options]\ndata = "a.jsonl"\n'
    (tmp_path / "config.toml").write_text(then)
    asked = load_config(None, {"env.id": "math", "env.options.data": "a.jsonl"})
    kept = with_kept(EvalTarget(asked), tmp_path).config
    assert kept.env.options["rows"] == {"weight_field": "weight", "join_forms": False}
    assert (kept.algo.behavior_clip, asked.algo.behavior_clip) == (1.0, 0.2)
    named = load_config(asked, {"algo.behavior_clip": 0.3})
    assert with_kept(EvalTarget(named), tmp_path).config.algo.behavior_clip == 0.3
    (tmp_path / "config.toml").write_text(then.replace("math", "reward:a:b"))
    assert with_kept(EvalTarget(asked), tmp_path).config == asked


def test_episodes_that_failed_are_played_again_until_there_is_a_result(tmp_path):
    target = EvalTarget(Config.model_validate({"model": {"path": "bundled/math"}}))
    group = make_group("a", [0])
    failed = replace(group.members[0], outcome=Outcome.AGENT_ERROR)
    task = Task(group.task_id, 0)
    with open_folder(tmp_path / "out", target) as folder:
        for episode in (failed, group.members[1]):
            asyncio.run(folder.log.add_evaluated(task, 0, episode))
        assert [*folder.finished()] == ["a-1"]
        asyncio.run(folder.log.add_evaluated(task, 0, group.members[0]))  # the cause is gone
        assert sorted(folder.finished()) == ["a-0", "a-1"]
        asyncio.run(folder.log.add_evaluated(task, 0, failed))
        folder.write_result({"reward": 0.5})
        assert sorted(folder.finished()) == ["a-0", "a-1"]


def test_an_evaluation_that_failed_is_listed_with_its_error(tmp_path, port):
    with pytest.raises(TooManyErrors):
        evaluate(
            gold(4),
            agent__id=f"{__name__}:Failing",
            rollout__trial_s=0,
            out=tmp_path / "e",
            port=port,
        )
    found = summary(tmp_path / "e")
    assert (found.kind, found.state) == ("eval", "failed")
    assert found.end is not None
    assert "KeyError: 'plan'" in found.end.message
    assert (tmp_path / "e" / "episodes.db").exists()


class Failing(Agent):
    """An agent that fails."""

    async def run(self, env, client, *, model, task):
        raise KeyError("plan")
