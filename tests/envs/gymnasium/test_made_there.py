"""Our environments through `gymnasium.make`: found by their module, played in sync."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import gymnasium
import numpy as np
import pytest
from arl_envs.gymnasium import made_there as ids
from gymnasium.utils.env_checker import check_env

import agentgym_rl
from agentgym_rl.core import ConfigError, EnvError, Task, TaskSource
from agentgym_rl.gym import Env, EnvSpec, Step
from agentgym_rl.gym.gymnasium import SyncGym
from tests.kit.cases import cases

OURS = "agentgym_rl.gym.gymnasium"
MATH = f"{OURS}:arl/math-v0"
RIGHT = {"role": "assistant", "content": "\\boxed{4}"}


class Three(TaskSource):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int, /) -> Task:
        if index >= 3:
            raise IndexError(index)
        return Task(id=str(index), seed=index)


class Counted(Env):
    """Three tasks; a reply of "hang" never comes back, "fail" raises."""

    @classmethod
    def task_source(cls, split, *, seed):
        return Three()

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": options["task"].id}], {}

    async def step(self, action):
        if action["content"] == "fail":
            raise EnvError("failed")
        if action["content"] == "hang":
            await asyncio.Event().wait()
        return Step([], 1.0, True, False, {"episode": {"r": 1.0}})


COUNTED = EnvSpec(id="counted", entry_point=f"{__name__}:Counted")


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "before",
    ["import agentgym_rl, gymnasium", "import gymnasium, agentgym_rl", "import gymnasium"],
    ids=["ours first", "theirs first", "theirs only"],
)
@pytest.mark.slow
def test_the_order_of_imports_makes_no_difference(before):
    code = f"{before}\nenv = gymnasium.make('{MATH}')\nprint(env.reset(seed=1)[1]['task_id'])"
    assert run(code) == "math1-train-1-0\n"


def test_importing_ours_does_not_import_theirs():
    code = "import agentgym_rl, agentgym_rl.gym.registry, sys; print('gymnasium' in sys.modules)"
    assert run(code) == "False\n"


def test_without_gymnasium_ours_can_be_imported():
    hidden = "import sys; sys.modules['gymnasium'] = None"
    attempt = (
        "import agentgym_rl, agentgym_rl.gym.registry\n"
        "try:\n    import agentgym_rl.gym.gymnasium\nexcept ImportError as e: print(e.name)"
    )
    assert run(f"{hidden}\n{attempt}") == "gymnasium\n"


def test_what_is_registered_here_is_found():
    agentgym_rl.register("mine/counted-v3", f"{__name__}:Counted", force=True)
    env = gymnasium.make(f"{OURS}:mine/counted-v3")
    assert env.reset(seed=0)[0] == [{"role": "user", "content": "0"}]
    env.close()


@pytest.mark.slow
def test_what_was_registered_before_is_found():
    code = (
        "import agentgym_rl, gymnasium\n"
        "agentgym_rl.register('mine/sums-v3', 'arl_envs.math.env:MathEnv')\n"
        f"print(gymnasium.make('{OURS}:mine/sums-v3').reset(seed=1)[1]['task_id'])"
    )
    assert run(code) == "math1-train-1-0\n"


def test_an_id_of_somebody_else_stays_theirs(caplog, monkeypatch):
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", gymnasium.registry)
    gymnasium.register("lab/cart-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    agentgym_rl.register("lab/cart-v0", f"{__name__}:Counted", force=True)
    assert "Counted" not in gymnasium.spec("lab/cart-v0").entry_point
    assert "will not know the environment lab/cart-v0" in caplog.text


def test_ids_without_a_namespace_are_in_ours():
    assert ids.gymnasium_id("math-v0") == "arl/math-v0"
    assert ids.gymnasium_id("theirs/echo-v0") == "theirs/echo-v0"


@pytest.mark.slow
def test_gymnasiums_own_checker_passes():
    env = gymnasium.make(MATH).unwrapped
    check_env(env)
    env.close()


@cases("action", [RIGHT, "\\boxed{4}"], ids=["message", "text"])
def test_an_action_is_a_message_or_a_text(action):
    with gymnasium.make(MATH) as env:
        question = Task(id="t", seed=1, data={"question": "2+2?", "answer": "4", "kind": "integer"})
        observation, _ = env.reset(options={"task": question})
        assert observation[-1]["content"] == "2+2?"
        assert env.step(action)[:4] == ([], 1.0, True, False)


def test_anything_else_is_no_action():
    with gymnasium.make(MATH) as env:
        env.reset(seed=1)
        with pytest.raises(TypeError, match="a text or an assistant message, got int"):
            env.step(3)


def test_a_seed_starts_its_tasks_and_no_seed_goes_on():
    with gymnasium.make(MATH) as env:
        ids = [env.reset(seed=seed)[1]["task_id"] for seed in (7, None, None, 7)]
    assert ids == [f"math1-train-7-{i}" for i in (0, 1, 2, 0)]


def test_finite_tasks_begin_again():
    env = SyncGym(COUNTED)
    assert [env.reset()[0][0]["content"] for _ in range(5)] == ["0", "1", "2", "0", "1"]
    env.close()


def test_held_out_tasks():
    with gymnasium.make(MATH, split="eval") as env:
        assert env.reset(seed=1)[1]["task_id"] == "math1-eval-1-0"


def test_options_and_limits_are_those_of_make():
    with gymnasium.make(MATH, level=2, options={"max_turns": 1}) as env:
        assert env.reset(seed=1)[1]["task_id"].startswith("math2")
        calls = [{"id": "a", "type": "function", "function": {}}]
        step = env.step({"role": "assistant", "content": None, "tool_calls": calls})
        assert step[2:4] == (False, True)


def test_wrong_options_say_so():
    with pytest.raises(ConfigError, match="level"):
        gymnasium.make(MATH, level=99)


def test_the_conversation_is_drawn():
    with gymnasium.make(MATH, render_mode="ansi") as env:
        env.reset(seed=1)
        env.step("\\boxed{4}")
        assert env.render().endswith("[assistant] \\boxed{4}")


def test_gymnasiums_wrappers_fit():
    env = gymnasium.wrappers.RecordEpisodeStatistics(SyncGym(COUNTED))
    env.reset(seed=0)
    assert env.step("go")[4]["episode"]["r"] == 1.0
    env.close()


def test_vectors_of_them():
    envs = gymnasium.make_vec(MATH, num_envs=2, vectorization_mode="sync")
    envs.reset(seed=1)
    _, rewards, terminated, _, _ = envs.step(("a", "b"))
    assert (list(rewards), list(terminated)) == ([0.0, 0.0], [True, True])
    envs.close()


def test_failures_pass_and_hangs_end():
    for action, limit_s, error, said in (
        ("fail", 60, EnvError, "failed"),
        ("hang", 0.5, TimeoutError, r"more than 0\.5 s"),
    ):
        env = SyncGym(COUNTED, step_timeout_s=limit_s)
        env.reset(seed=0)
        with pytest.raises(error, match=said):
            env.step(action)
        env.close()


def test_within_a_running_loop():
    async def notebook() -> list:
        with gymnasium.make(MATH) as env:
            return env.reset(seed=1)[0]

    assert asyncio.run(notebook())


def test_nothing_is_left_behind():
    before = set(threading.enumerate())
    for ending in (SyncGym.close, lambda env: None):
        env = SyncGym(COUNTED)
        env.reset(seed=0)
        ending(env)
        del env
        gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_closed_and_played_again_it_leaves_nothing_more():
    env = SyncGym(COUNTED)
    kept = []
    for _ in range(3):
        env.reset()
        kept.append(weakref.ref(env._loop))
        env.close()
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_environments_that_run_programs_get_a_sandbox():
    program = "```python\nprint(1)\n```"
    with gymnasium.make(f"{OURS}:arl/code-v0", sandbox_options={"slots": 1}) as env:
        env.reset(seed=1)
        step = env.step(program)
        assert step[4]["verifier"] == "wrong_answer"


def test_the_spaces_contain_what_they_sample():
    env = SyncGym(COUNTED)
    for space in (env.action_space, env.observation_space):
        space.seed(3)
        assert all(space.sample() in space for _ in range(10))
    assert np.int64(3) not in env.action_space
    assert [{"role": "user"}] in env.observation_space
    env.close()


def test_tools_are_reachable():
    env = gymnasium.make(MATH)
    _, info = env.reset(seed=1)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["calculator"]
    assert env.unwrapped.tools == info["tools"]
    env.close()


@cases("given", [{"env_id": "FrozenLake-v1"}, {"options": {"id": "CliffWalking-v1"}}])
def test_the_id_of_an_inner_environment_can_be_given(given):
    env = gymnasium.make(f"{OURS}:arl/gymnasium-v0", **given)
    messages, _ = env.reset(seed=1)
    assert "reply" in messages[0]["content"].lower()
    env.close()


@cases("task", [1, 0, {}, "math-1"])
def test_a_task_that_is_none_is_refused(task):
    env = gymnasium.make(MATH)
    with pytest.raises(EnvError, match="expected a Task, such as"):
        env.reset(options={"task": task})
    env.close()


def test_statistics_are_left_to_gymnasiums_wrapper():
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(MATH))
    env.reset(seed=1)
    *_, info = env.step("hello")
    assert info["episode"]["l"] == 1
    env.close()


@pytest.mark.slow
def test_an_environment_that_nobody_closes_ends_in_silence():
    code = f'import gymnasium; gymnasium.make("{OURS}:arl/tools-v0").reset(seed=1)'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
