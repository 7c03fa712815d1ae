"""Evaluation against a scripted model: what is averaged, what is played again, what is refused."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from arl_agents.single_turn import SingleTurn

from agentgym_rl import Agent, Env, Step
from agentgym_rl.config import EvalConfig, GatewayConfig, RolloutConfig
from agentgym_rl.core import ConfigError, InfraError, Task, TaskSource, TooManyErrors
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.evaluate import EvalResult
from agentgym_rl.evaluate.evaluate import evaluate
from agentgym_rl.evaluate.result import EnvResult
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines, InputLimit

FAILURE = Say([5], fail_after=0)


class Numbered(TaskSource):
    """Task i has seed i; finite when given a length."""

    def __init__(self, length: int | None = None) -> None:
        self._length = length

    def __getitem__(self, index: int) -> Task:
        return Task(f"t{index}", index, split="eval")

    def __len__(self) -> int:
        return super().__len__() if self._length is None else self._length


class Graded(Env):
    """Task i is worth i; it ends at the first reply."""

    async def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed
        info = {"env_id": "odd"} if self.number % 2 else {}
        return [{"role": "user", "content": f"number {self.number}"}], info

    async def step(self, action):
        return Step([], float(self.number), True, False, {"metrics": {"tool_calls": 2}})


class Picky(Agent):
    """Fails on the tasks below `fails`, plays the others."""

    def __init__(self, fails: int) -> None:
        self.fails = fails

    async def run(self, env, client, *, model, task):
        if task.seed < self.fails:
            raise RuntimeError(f"task {task.seed} is beneath me")
        await SingleTurn().run(env, client, model=model, task=task)


@dataclass
class Evaluated:
    result: EvalResult
    engine: ScriptedEngine
    progress: list[tuple[int, int]]


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


@pytest.fixture
def play(chat):
    """`play(tasks=…, agent=…, failures=…, seed=…, max_retries=…, **EvalConfig)`."""

    def run(**settings) -> Evaluated:
        try:
            return asyncio.run(evaluated(chat, **settings))
        except BaseExceptionGroup as group:
            (error,) = group.exceptions  # of the task group the gateway is served in
            raise error from group

    return run


async def evaluated(
    chat: ChatFormat,
    *,
    agent=SingleTurn,
    tasks: TaskSource | None = None,
    failures: int = 0,
    seed: int = 1,
    max_retries: int = 1,
    longest: int = 0,
    reply: str = "5<|im_end|>",
    **settings,
) -> Evaluated:
    """Evaluate; the engine fails on its first `failures` requests."""
    left = [FAILURE] * failures
    engine = ScriptedEngine(lambda _: left.pop() if left else chat.encode(reply))
    engine.version = 7
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="m", max_model_len=512)
    progress: list[tuple[int, int]] = []
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(gateway.serve())
        clients = await stack.enter_async_context(AgentClients(url))
        player = Player(
            Graded,
            agent,
            gateway,
            clients,
            "m",
            Deadlines(5, 5),
            env_id="graded",
            input_limit=InputLimit(longest, gateway.count_prompt) if longest else None,
        )
        async with asyncio.timeout(60):
            result = await evaluate(
                EvalConfig(**{"num_tasks": 10} | settings),
                RolloutConfig(max_tokens=8, max_retries=max_retries),
                player,
                Numbered() if tasks is None else tasks,
                seed=seed,
                on_progress=lambda done, total: progress.append((done, total)),
            )
    return Evaluated(result, engine, progress)


def test_every_task_is_played_once_and_averaged(play):
    found = play()
    result = found.result
    assert (result.reward, result.num_tasks) == (4.5, 10)
    assert (result.turns, result.versions) == (1.0, (7,))
    assert result.outcomes == {"completed": 10}
    assert len({entry.session_id for entry in found.engine.journal}) == 10


def test_what_is_too_long_is_counted_and_no_failure(play, chat):
    longest = len(chat.prompt([{"role": "user", "content": "number 4"}], None))
    result = play(longest=longest, num_tasks=30).result  # from 10 on, numbers have a digit more
    assert result.outcomes == {"completed": 10, "too_long": 20}
    assert (result.reward, result.num_tasks) == (4.5, 10)
    with pytest.raises(ConfigError, match=r"no evaluation task was played: .*max_input_tokens 3"):
        play(longest=3)


def test_a_failure_of_many_episodes_is_one_warning(play, caplog):
    found = play(failures=15, max_retries=15).result
    assert found.outcomes == {"completed": 10}
    assert sum("is played again" in line for line in caplog.messages) == 1


def test_an_evaluation_of_cut_replies_is_one_warning(play, caplog):
    assert play().result.cut_turns == 0
    assert caplog.messages == []
    result = play(reply="5 5 5 5 5 5 5 5 5 5 5 5").result
    assert result.cut_turns == 10
    (said,) = caplog.messages
    assert said.startswith("10 of 10 replies of the evaluation were cut at rollout.max_tokens 8")


def test_every_environment_has_its_own_mean(play):
    result = play(agent=lambda: Picky(2)).result
    assert result.envs == {"graded": EnvResult(5.0, 4), "odd": EnvResult(6.0, 4)}


def test_progress_counts_to_the_end(play):
    assert play(num_tasks=4, max_concurrent=3).progress == [(i, 4) for i in (1, 2, 3, 4)]


def test_no_more_than_max_concurrent_are_played_at_once(play):
    class Counting(SingleTurn):
        now = most = 0

        async def run(self, env, client, *, model, task):
            Counting.now += 1
            Counting.most = max(Counting.most, Counting.now)
            await super().run(env, client, model=model, task=task)
            Counting.now -= 1

    play(agent=Counting, max_concurrent=3)
    assert Counting.most == 3


def test_a_finite_source_is_played_once(play):
    found = play(tasks=Numbered(3), num_tasks=10)
    assert found.result.num_tasks == 3
    assert found.progress[-1] == (3, 3)


def test_an_empty_source_is_refused(play):
    with pytest.raises(ConfigError, match="no tasks"):
        play(tasks=Numbered(0))


def test_an_infrastructure_failure_is_played_again(play):
    found = play(failures=1)
    assert (found.result.reward, found.result.outcomes) == (4.5, {"completed": 10})
    assert len(found.engine.journal) == 11


def test_a_lasting_infrastructure_failure_is_no_result(play):
    with pytest.raises(InfraError, match="scripted failure"):
        play(failures=2, num_tasks=1, max_retries=1)


def test_a_few_failures_are_left_out_of_the_means_and_counted(play):
    result = play(agent=lambda: Picky(2)).result  # a fifth
    assert result.outcomes == {"completed": 8, "agent_error": 2}
    assert (result.reward, result.num_tasks) == (5.5, 8)


def test_more_than_a_fifth_of_failures_is_no_result(play):
    with pytest.raises(TooManyErrors, match=r"(?s)is beneath me.*3 of 10.*agent_error"):
        play(agent=lambda: Picky(3))


def sampled(play, **settings) -> dict[str, tuple]:
    """How each episode was sampled."""
    journal = play(num_tasks=3, **settings).engine.journal
    return {e.session_id: (e.sampling.seed, e.sampling.temperature) for e in journal}


def test_sampling_follows_the_seed(play):
    first = sampled(play, seed=1, temperature=0.7)
    assert sampled(play, seed=1, temperature=0.7) == first
    assert first.keys() == sampled(play, seed=2).keys()
    assert len({seed for seed, _ in (*first.values(), *sampled(play, seed=2).values())}) == 6
    assert {temperature for _, temperature in first.values()} == {0.7}
