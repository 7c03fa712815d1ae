"""Tasksets of the real verifiers package, in the Python that ARL_VERIFIERS_PYTHON names."""

import asyncio
import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arl_envs.verifiers import SPEC, bridge
from arl_envs.verifiers.bridge import Bridge, bridge_to

from agentgym_rl.core import ConfigError, EnvError, InfraError, Task
from agentgym_rl.gym import Step
from tests.kit.cases import cases

TOY = str(Path(__file__).with_name("toy_taskset.py"))
pytestmark = pytest.mark.slow  # verifiers takes seconds to import


def tasks(split: str = "train", seed: int = 0, **options) -> list[Task]:
    return list(SPEC.task_source(split, seed=seed, taskset=TOY, **options))


def say(reply: str, **more) -> dict:
    return {"role": "assistant", "content": reply, **more}


async def played(action: dict, task: Task | None = None, **options) -> tuple[list, Step]:
    env = SPEC.make(taskset=TOY, **options)
    try:
        first, _ = await env.reset(seed=3, options={"task": task} if task else None)
        return first, await env.step(action)
    finally:
        await env.close()


def play(action: dict, task: Task | None = None, **options) -> tuple[list, Step]:
    return asyncio.run(played(action, task, **options))


def outcome(*replies: str, timeout_s: float = 3.0, **options) -> list:
    """Of episodes that are played at once: rewards, and types of errors."""

    async def all_of_them() -> list:
        plays = [played(say(reply), timeout_s=timeout_s, **options) for reply in replies]
        found = await asyncio.gather(*plays, return_exceptions=True)
        return [type(x) if isinstance(x, BaseException) else x[1].reward for x in found]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("right_by", "rewards"),
    [(0, {"exact": 0.75, "number": 0.25}), (1, {"exact": 0.0, "number": 0.25})],
    ids=["right", "wrong"],
)
def test_a_reply_is_paid_what_the_taskset_says(right_by, rewards, python):
    task = tasks()[0]
    answer = str(2 * task.data["number"] + right_by)
    _, step = play(say(answer), task)
    assert (step.reward, step.terminated, step.truncated) == (sum(rewards.values()), True, False)
    assert step.info["reward_components"] == rewards
    assert step.info["metrics"] == {"letters": len(answer)}


def test_the_prompt_and_the_system_prompt_come_first(python):
    task = tasks()[0]
    first, _ = play(say(""), task)
    number = task.data["number"]
    assert first == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": f"{number} + {number}?"},
    ]


def test_a_prompt_may_be_a_conversation(python):
    config = {"kind": "messages"}
    task = tasks(config=config)[0]
    first, step = play(say(str(2 * task.data["number"])), task, config=config)
    assert [m["role"] for m in first] == ["system", "user", "assistant", "user"]
    assert step.reward == 1.0


def test_a_seed_is_an_episode_and_there_are_several(python):
    firsts = {seed: SPEC.make(taskset=TOY) for seed in (1, 2)}
    found = [asyncio.run(firsts[seed].reset(seed=seed))[0] for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


def test_every_task_is_in_one_split_and_its_order_is_the_seeds(python):
    train, held_out = tasks(), tasks("eval")
    assert len(train) + len(held_out) == 40
    assert not {t.data["digest"] for t in train} & {t.data["digest"] for t in held_out}
    assert tasks() == train != tasks(seed=1)
    assert sorted(t.id for t in tasks(seed=1)) == sorted(t.id for t in train)


def test_held_out_tasks_may_have_a_config_and_are_not_trained_on(python):
    options = {"config": {"count": 10}, "eval_config": {"first": 8, "count": 4}}
    assert sorted(t.data["number"] for t in tasks(**options)) == list(range(8))
    first, _ = play(say(""), tasks("eval", **options)[0], **options)
    assert first[1]["content"] in [f"{n} + {n}?" for n in range(8, 12)]


def test_of_an_endless_taskset_the_first_tasks(python):
    options = {"config": {"kind": "endless"}, "num_tasks": 30}
    assert len(tasks(**options)) + len(tasks("eval", **options)) == 30


@cases(
    "config, problem",
    [
        ({"kind": "endless"}, "num_tasks=1000"),
        ({"kind": "runtime"}, "WithRuntime.ran needs a runtime"),
        ({"kind": "container"}, "InContainer needs a container"),
        ({"kind": "unprompted"}, "task 0 has no prompt"),
        ({"color": 1}, "it takes count, first, kind"),
        ({"count": 0}, "0 tasks, none of them for train"),
    ],
    ids=range(6),
)
def test_what_cannot_be_played_is_a_config_error(config, problem, python):
    with pytest.raises(ConfigError, match=problem):
        tasks(config=config)


def test_an_absent_taskset_is_a_config_error(python):
    with pytest.raises(ConfigError, match="taskset 'no-such-one' not found"):
        SPEC.task_source("train", seed=0, taskset="no-such-one")


def test_a_taskset_that_raises_says_where(python):
    with pytest.raises(EnvError, match=r"no such file \(.*toy_taskset.py:\d+\)"):
        tasks(config={"kind": "broken"})


def test_a_task_that_asks_something_else_now_is_an_error(python):
    with pytest.raises(EnvError, match="asks something else than when it was listed"):
        play(say(""), tasks()[0], config={"first": 50})


def test_failures_are_never_rewards_and_hurt_nobody_else(python):
    assert outcome("7", "raise", "nan", "wait") == [0.25, EnvError, EnvError, InfraError]


def test_waiting_for_others_is_held_against_nobody(python):
    assert outcome(*["work"] * 24, timeout_s=1.5) == [0.0] * 24


def test_scorers_that_wait_may_do_so_together(python):
    assert outcome("meet", "meet", timeout_s=30.0, scored_at_once=2) == [0.0, 0.0]


def test_a_call_without_a_turn_in_time_is_infrastructure_and_ends_nothing(python, monkeypatch):
    assert outcome("7", timeout_s=60.0) == [0.25]
    life = bridge_to(TOY, bridge.interpreter(python))._life
    monkeypatch.setattr(bridge, "TURN_TIMEOUT_S", -5.5)  # less grace and the call's own
    assert InfraError in outcome(*["work"] * 8, timeout_s=1.5)
    monkeypatch.undo()
    assert outcome("7", timeout_s=60.0) == [0.25]
    assert bridge_to(TOY, bridge.interpreter(python))._life is life


@pytest.mark.parametrize("reply", ["hang", "die"])
def test_after_a_process_that_hangs_or_dies_there_is_another(reply, python):
    assert outcome(reply) == [InfraError]
    assert outcome("7", timeout_s=60.0) == [0.25]


@pytest.mark.parametrize("reply", ["\x00\ud800\n" * 1000, "9" * 1_000_000], ids=["odd", "long"])
def test_hostile_replies_arrive(reply, python):
    _, step = play(say(reply))
    assert step.info["metrics"]["letters"] == len(reply.strip())


def test_a_tool_call_is_answered_and_no_reply(python):
    _, step = play(say("7", tool_calls=[{"id": "a", "function": {"name": "x"}}]))
    assert [m["tool_call_id"] for m in step.observation] == ["a"]
    assert (step.reward, len(step.info["tool_errors"])) == (0.25, 1)


def test_instances_share_a_process_over_event_loops(python):
    lives = set()
    for _ in range(2):
        assert outcome(*["7"] * 8) == [0.25] * 8
        lives.add(bridge_to(TOY, bridge.interpreter(python))._life)
    assert len(lives) == 1


def digests(at: Bridge) -> list[str]:
    source = {"taskset": TOY, "config": {}, "num_tasks": 2}
    return at.call_now("digests", timeout_s=60, source=source)


def test_an_idle_process_ends_and_the_next_call_starts_another(python):
    at = Bridge(python, idle_s=0.2)
    first = digests(at)
    process = at._life._process
    for _ in itertools.takewhile(lambda _: process.poll() is None, range(600)):
        time.sleep(0.05)
    assert process.returncode == -9
    assert digests(at) == first
    at.close()


def test_close_ends_the_process(python):
    at = Bridge(python)
    digests(at)
    process = at._life._process
    at.close()
    assert process.returncode == -9


def test_it_ends_with_the_process_that_asked(python):
    program = (
        "import os, sys; from arl_envs.verifiers.bridge import Bridge; at = Bridge(sys.argv[1]);"
        "at.call_now('digests', timeout_s=60, source={'taskset': sys.argv[2], 'config': {}, "
        "'num_tasks': 1}); print(at._life._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    argv = [sys.executable, "-c", program, python, TOY]
    pid = subprocess.run(argv, capture_output=True, text=True, timeout=120).stdout.strip()
    for _ in itertools.takewhile(lambda _: is_running(pid), range(600)):
        time.sleep(0.05)
    assert pid
    assert not is_running(pid)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_python_without_verifiers_is_told_how_to_get_it(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    with pytest.raises(ConfigError, match=r"-m pip install verifiers==0\.4\.0"):
        tasks(python=f"{tmp_path}/bin/python")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"taskset": "x", "python": "/no/such/python"}, "no program.*verifiers==0.4.0"),
        ({}, "--env verifiers:my-taskset"),
    ],
    ids=["python", "taskset"],
)
def test_options_that_cannot_work_are_config_errors(options, problem):
    with pytest.raises(ConfigError, match=problem):
        SPEC.make(**options)
