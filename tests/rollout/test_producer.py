"""Rollout, gateway, buffer, log and controller together: only model and trainer are scripted."""

import asyncio
import re
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from arl_agents.single_turn import SingleTurn

from agentgym_rl import Agent, Env, Step
from agentgym_rl.config import Config, GatewayConfig, RolloutConfig, TrainerConfig
from agentgym_rl.controller import Buffer, Plan
from agentgym_rl.core import (
    BatchShard,
    ConfigError,
    ImageError,
    StepReport,
    Task,
    TaskSource,
    TooManyErrors,
)
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway
from agentgym_rl.gym.wrappers import Timeout
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import FinishedGroups, LocalProducer, OpenGroups, Player, TaskCursor
from agentgym_rl.rollout.episode import Deadlines, InputLimit
from agentgym_rl.rollout.producer import drawn
from agentgym_rl.run import Loop
from agentgym_rl.storage import EpisodeLog, MetricsFile, PhasesFile, Recovered
from agentgym_rl.storage.recovery import NOTHING
from tests.kit.groups import Publications
from tests.kit.pulled import OnDemandController, PulledRanks

B, GROUP_SIZE, STEPS = 2, 2, 6
ENDS_WITHIN_S = 120.0


class Numbered(TaskSource):
    """Task i has seed i and the weight `weigh(i)`; finite when given a length."""

    def __init__(self, length: int | None = None, weigh=lambda number: 1.0) -> None:
        self._length, self._weigh = length, weigh

    def __getitem__(self, index: int) -> Task:
        return Task(f"t{index}", index, weight=self._weigh(index))

    def __len__(self) -> int:
        return super().__len__() if self._length is None else self._length


class NumberEnv(Env):
    """Says the task's number; the reply is right if it holds a 1."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.number = -1

    async def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed
        return [{"role": "user", "content": f"number {self.number}."}], {}

    async def step(self, action):
        return Step([], float("1" in action["content"]), True, False, {})


class Script:
    """Replies by task: `trouble[n]` to task n, "1" and "0" in turn to the others."""

    def __init__(self, chat: ChatFormat, trouble: dict[int, list[Say]] | None = None) -> None:
        self._chat, self._trouble = chat, trouble or {}
        self.asked: defaultdict[int, int] = defaultdict(int)

    def __call__(self, prompt):
        number = int(self._chat.text(prompt).rpartition("number ")[2].partition(".")[0])
        self.asked[number] += 1
        if self._trouble.get(number):
            return self._trouble[number].pop(0)
        return self._chat.encode(f"{self.asked[number] % 2}<|im_end|>")


@dataclass
class Watched(Buffer):
    """Remembers (version, running, accepted) at every admission."""

    admissions: list[tuple[int, int, int]] = field(default_factory=list)

    def admit(self) -> None:
        self.admissions.append((self.version, self.running, self.accepted))
        super().admit()


@dataclass
class Played:
    """What a run left: the trained batches, and the parts that made them."""

    shards: list[BatchShard]
    finished: FinishedGroups
    buffer: Watched
    engine: ScriptedEngine
    metrics: list[dict[str, float]]
    groups: dict[str, tuple[str, str, int | None]]
    """(status, cause, step) of every group in the log."""

    @property
    def staleness(self) -> list[int]:
        """The oldest trained token's age, batch by batch, from the batches alone."""
        found = []
        for shard in self.shards:
            rows = [item.row for minibatch in shard.minibatches for item in minibatch]
            versions = np.concatenate([row.policy_versions[row.loss_mask] for row in rows])
            found.append(shard.step - int(versions.min()))
        return found

    @property
    def trained(self) -> list[str]:
        """Groups as they were trained, once per batch they are in."""
        return [name for shard in self.shards for name in sorted(set(shard.group_ids))]


async def train(
    controller: OnDemandController, ranks: PulledRanks, engine: ScriptedEngine, steps: int
) -> list[BatchShard]:
    """A trainer that learns nothing; the batch before the last has a checkpoint."""
    shards = []
    for step in range(steps):
        shard = None
        while shard is None:  # groups were too old
            await controller.buffer.changes.wait_for(
                lambda step=step: controller.could_have(step), who="t", what="b", timeout_s=99
            )
            shard = await ranks.batch(step, 0)
        await asyncio.sleep(0.02)
        shards.append(shard)
        await engine.update_weights("", version=step + 1)
        trained = list(dict.fromkeys(shard.group_ids))
        report = StepReport(step, step + 1, {}, group_ids=trained)
        await ranks.report(report, life=0)
        if step == steps - 2:
            await controller.episodes.checkpointed(step + 1, "there")
    return shards


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


@pytest.fixture
def play(tmp_path, chat):
    """Play a run: `play(trouble=…, env=…, agent=…, steps=…, **RolloutConfig)`."""

    def run(**settings) -> Played:
        try:
            return asyncio.run(played(tmp_path, chat, **settings))
        except BaseExceptionGroup as group:
            first, *others = leaves(group)
            assert all(type(other) is type(first) for other in others), others
            raise first from group

    return run


async def played(
    tmp_path,
    chat: ChatFormat,
    *,
    env=NumberEnv,
    agent: type[Agent] = SingleTurn,
    trouble: dict[int, list[Say]] | None = None,
    steps: int = STEPS,
    num_tasks: int | None = None,
    weigh=lambda number: 1.0,
    seed: int = 0,
    recovered: Recovered = NOTHING,
    max_model_len: int = 512,
    **settings,
) -> Played:
    config = Config(
        seed=seed,
        rollout=RolloutConfig(groups_per_batch=B, group_size=GROUP_SIZE, **settings),
        trainer=TrainerConfig(num_minibatches=1),
        steps=steps,
    )
    engine = ScriptedEngine(Script(chat, trouble))
    gateway = Gateway(
        engine, chat, config=GatewayConfig(), model_name="m", max_model_len=max_model_len
    )
    async with AsyncExitStack() as stack:
        episodes = stack.enter_context(closing(EpisodeLog(tmp_path / "episodes.db")))
        buffer = Watched(config.rollout, total_groups=steps * B, log=episodes)
        metrics = stack.enter_context(closing(MetricsFile(tmp_path / "metrics.jsonl")))
        controller = OnDemandController(
            config.trainer,
            config.algo,
            buffer,
            episodes,
            metrics,
            stack.enter_context(closing(PhasesFile(tmp_path))),
            plan=Plan(config.trainer, config.eval, steps=config.steps),
            publications=Publications(e="http://e"),
            on_step=lambda *_: None,
        )
        ranks = PulledRanks(controller)
        stack.callback(ranks.begin(Loop(controller, ranks)).cancel)
        url = await stack.enter_async_context(gateway.serve())
        clients = await stack.enter_async_context(AgentClients(url))
        longest = config.rollout.max_input_tokens
        limit = InputLimit(longest, gateway.count_prompt) if longest else None
        player = Player(
            lambda: env(buffer), agent, gateway, clients, "m", Deadlines(99, 99), input_limit=limit
        )
        groups = OpenGroups(config.rollout, buffer, episodes, recovered)
        rollout = LocalProducer(
            config.rollout,
            groups,
            TaskCursor(
                config.rollout,
                Numbered(num_tasks, weigh),
                seed=config.seed,
                logged=recovered.logged,
                numbers=controller.rollout_metrics,
            ),
            player,
            seed=config.seed,
        )
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(rollout.run())
            shards = await train(controller, ranks, engine, steps)
            playing.cancel()
    history = [dict(step) for step in controller.history]
    return Played(shards, groups.finished, buffer, engine, history, logged_groups(tmp_path))


def logged_groups(tmp_path) -> dict[str, tuple[str, str, int | None]]:
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as db:
        rows = db.execute("SELECT group_id, status, cause, step FROM groups")
        return {name: (status, cause, step) for name, status, cause, step in rows}


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside nested groups: episodes end together, so one trouble may come twice."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


# ---------------------------------------------------------------- going on
def test_what_was_played_before_is_not_played_again(tmp_path, play):
    play()
    with closing(EpisodeLog(tmp_path / "episodes.db")) as log:
        there = {t.episode_id: replace(t, reward=77.0) for t in log.trajectories()}
    (tmp_path / "episodes.db").unlink()
    begun = {"g0": {"g0-1": there["g0-1"]}}
    found = play(recovered=Recovered(begun=begun, logged=frozenset({1, 2})))
    names = [name for shard in found.shards for name in shard.group_ids]
    assert "g0" in names
    assert not {"g1", "g2"} & set(names)
    rewards = [reward for shard in found.shards for reward in shard.rewards]
    assert rewards.count(77.0) == 1
    with closing(EpisodeLog(tmp_path / "episodes.db")) as log:
        assert {t.episode_id for t in log.trajectories()} >= {"g0-0", "g0-1", "g3-0"}


# ---------------------------------------------------------------- pacing
@pytest.mark.parametrize("eta", [1, 2])
def test_rollout_runs_ahead_of_the_trainer_but_never_past_the_bound(play, eta):
    found = play(max_staleness=eta)
    assert len(found.shards) == STEPS
    assert sum(found.staleness) / STEPS > 0
    assert max(found.staleness) <= eta


def test_eta_zero_is_synchronous(play):
    found = play(max_staleness=0)
    assert found.staleness == [0] * STEPS
    assert found.buffer.dropped == {}


@pytest.mark.parametrize("settings", [{}, {"max_concurrent": 3}, {"lookahead": 1}])
def test_admission_keeps_the_law_at_every_moment(play, settings):
    found = play(**settings)
    admissions = found.buffer.admissions
    assert len(admissions) >= STEPS * B
    for version, running, accepted in admissions:
        assert running + accepted + 1 <= (settings.get("lookahead", 2) + version + 1) * B
        assert running + 1 <= settings.get("max_concurrent", 2 * B)
    assert max(running + accepted for _, running, accepted in admissions) < STEPS * B


class Held(NumberEnv):
    """Task 1 is answered at version 0 and not finished before version 2."""

    async def step(self, action):
        if self.number == 1:
            await self.buffer.changes.wait_for(
                lambda: self.buffer.version >= 2, who="task 1", what="version 2", timeout_s=100
            )
        return await super().step(action)


def test_a_straggler_is_dropped_and_its_budget_returned(play):
    found = play(env=Held, max_staleness=1)
    assert found.groups["g1"][:2] == ("dropped", "stale")
    assert found.buffer.dropped == {"stale": 1}
    assert "g1" not in found.trained
    assert len(found.trained) == STEPS * B  # the last batch needs the budget of g1
    assert max(found.staleness) <= 1


def test_a_straggler_is_trained_if_asked_for(play):
    found = play(env=Held, max_staleness=1, stale_policy="train")
    assert found.buffer.dropped == {}
    assert "g1" in found.trained
    assert max(found.staleness) >= 2


# ---------------------------------------------------------------- what is trained, and once
def test_every_group_is_trained_at_most_once_and_the_log_says_when(play):
    found = play()
    assert len(found.trained) == len(set(found.trained)) == STEPS * B
    for shard in found.shards:
        status = "leased" if shard.step == STEPS - 1 else "consumed"  # no checkpoint after it
        assert {found.groups[name] for name in shard.group_ids} == {(status, "", shard.step)}
    left = {found.groups[name][0] for name in found.groups.keys() - set(found.trained)}
    assert left <= {"waiting"}


def test_groups_are_whole_in_their_batch(play):
    for shard in play().shards:
        assert len(shard.group_ids) == B * GROUP_SIZE
        assert len(set(shard.group_ids)) == B


def tasks_in_order(tmp_path) -> list[str]:
    """Of the groups in the log, in the order in which they were admitted."""
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as db:
        rows = db.execute("SELECT group_id, task_id FROM groups").fetchall()
    return [task for _, task in sorted(rows, key=lambda row: int(row[0][1:]))]


def test_a_finite_source_starts_over_in_another_order(play, tmp_path):
    found = play(num_tasks=3, steps=6)
    assert len(found.trained) == 6 * B
    order = tasks_in_order(tmp_path)
    epochs = [order[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(epoch) == ["t0", "t1", "t2"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert found.metrics[-1]["rollout/epochs"] >= 3


def test_without_shuffling_a_finite_source_keeps_its_order(play, tmp_path):
    play(num_tasks=3, steps=3, shuffle=False)
    assert tasks_in_order(tmp_path)[:6] == ["t0", "t1", "t2"] * 2


# ---------------------------------------------------------------- slow sources
class SlowSource(Numbered):
    """Task i is made only once `go` has been set, by the event loop that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __getitem__(self, index: int) -> Task:
        self.asked.append(index)
        self.begun.set()
        assert self.go.wait(ENDS_WITHIN_S), "the event loop waits for the source"
        return super().__getitem__(index)


async def begun(source: SlowSource) -> None:
    while not source.begun.is_set():  # noqa: ASYNC110  (another thread's state)
        await asyncio.sleep(0.001)


def test_the_event_loop_goes_on_while_a_source_makes_a_task():
    source = SlowSource()

    async def play() -> list[int]:
        cursor = TaskCursor(RolloutConfig(), source, seed=0)
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(cursor.next())
            await begun(source)
            source.go.set()
        return [first.result()[0], (await cursor.next())[0]]

    assert asyncio.run(play()) == source.asked == [0, 1]


def test_a_task_whose_caller_was_cancelled_is_the_next_one():
    source = SlowSource()

    async def play() -> list[int]:
        cursor = TaskCursor(RolloutConfig(), source, seed=0)
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(cursor.next())
            await begun(source)
            first.cancel()
        source.go.set()
        return [(await cursor.next())[0] for _ in range(3)]

    assert asyncio.run(play()) == [0, 1, 2]
    assert source.asked == [0, 0, 1, 2]


def test_sources_are_asked_one_at_a_time():
    """They may share what they read, as the rows of both splits do."""
    inside: list[int] = []

    class Shared(Numbered):
        def __getitem__(self, index: int) -> Task:
            inside.append(index)
            time.sleep(0.001)
            assert inside == [index]
            return super().__getitem__(inside.pop())

    async def play() -> None:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(drawn(Shared(), index)) for index in range(20)]
        assert [each.result().id for each in made] == [f"t{index}" for index in range(20)]

    asyncio.run(play())


# ---------------------------------------------------------------- weights
def test_fewer_weightless_tasks_in_a_row_than_the_limit_are_passed_over():
    tasks = Numbered(weigh=lambda number: float(number in (2, 5)))
    numbers: dict[str, float] = {}
    cursor = TaskCursor(RolloutConfig(max_rejected=3), tasks, seed=0, numbers=numbers)

    async def indices() -> list[int]:
        return [(await cursor.next())[0] for _ in range(2)]

    assert asyncio.run(indices()) == [2, 5]
    assert numbers == {"rollout/weight_0": 4}
    with pytest.raises(ConfigError, match=r"3 tasks in a row have weight 0 \(rollout.max_rejected"):
        asyncio.run(cursor.next())
    assert numbers == {"rollout/weight_0": 7}


def test_tasks_of_weight_zero_are_never_played_and_the_others_weights_are_kept(play, tmp_path):
    found = play(weigh=lambda number: number % 3 / 2, steps=4)
    assert not any(number % 3 == 0 for number in (int(t[1:]) for t in tasks_in_order(tmp_path)))
    assert found.metrics[-1]["rollout/weight_0"] >= 4
    for shard in found.shards:
        expected = [int(name[1:]) % 3 / 2 for name in shard.group_ids]
        assert shard.weights == expected
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as db:
        logged = dict(db.execute("SELECT task_id, weight FROM tasks"))
    assert logged["t1"] == 0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_tasks": 5}, "10 tasks in a row have weight 0, all 5 that there are"),
        ({"max_rejected": 9}, r"9 tasks in a row have weight 0 \(rollout.max_rejected\)"),
    ],
)
def test_tasks_that_all_have_weight_zero_end_the_run(play, settings, said):
    with pytest.raises(ConfigError, match=said):
        play(weigh=lambda number: 0.0, **settings)


@pytest.mark.parametrize("seed", range(4))
def test_one_task_with_a_weight_is_enough_however_epochs_are_shuffled(play, seed, tmp_path):
    found = play(weigh=lambda number: float(number == 3), num_tasks=10, seed=seed, steps=10)
    assert len(found.shards) == 10
    assert found.metrics[-1]["rollout/epochs"] >= 19
    assert set(tasks_in_order(tmp_path)) == {"t3"}


# ---------------------------------------------------------------- too long
class Wordy(NumberEnv):
    """Every third task is long."""

    async def reset(self, *, seed=None, options=None):
        messages, info = await super().reset(seed=seed, options=options)
        more = {"role": "system", "content": "word " * (200 if self.number % 3 == 0 else 1)}
        return [more, *messages], info


@pytest.mark.parametrize("limit", ["max_input_tokens", "max_model_len"])
def test_tasks_that_are_too_long_are_dropped_unplayed(play, limit, caplog):
    found = play(env=Wordy, **{limit: 100})
    assert set(found.finished.outcomes) == {"completed", "too_long"}
    long = {name for name, group in found.groups.items() if group[1] == "too_long"}
    assert {"g0", "g3", "g6"} <= long  # a third of all, which is more than may fail
    assert all(int(name[1:]) % 3 == 0 for name in long)
    assert len(found.trained) == STEPS * B
    assert found.buffer.dropped == {"too_long": len(long)}
    asked = {entry.session_id.partition("-")[0] for entry in found.engine.journal}
    assert asked.isdisjoint(long)
    assert sum("is left out: the first prompt" in line for line in caplog.messages) == 1


def test_tasks_without_an_image_are_left_out_by_name_and_not_tried_again(play, caplog):
    class Unbuilt(NumberEnv):
        """Every third task has an image that cannot be built."""

        tries: ClassVar[Counter[int]] = Counter()

        async def reset(self, *, seed=None, options=None):
            found = await super().reset(seed=seed, options=options)
            Unbuilt.tries[self.number] += 1
            if self.number % 3 == 1:
                raise ImageError("line 3: RUN make: exit code 2")
            return found

    found = play(env=Unbuilt)
    assert set(found.finished.outcomes) == {"completed", "no_image"}
    unbuilt = {name for name, group in found.groups.items() if group[1] == "no_image"}
    assert {"g1", "g4", "g7"} <= unbuilt  # a third of all, which is more than may fail
    assert len(found.trained) == STEPS * B
    assert found.buffer.dropped == {"no_image": len(unbuilt)}
    assert all(Unbuilt.tries[int(name[1:])] == GROUP_SIZE for name in unbuilt)
    said = [line for line in caplog.messages if "is left out: line 3: RUN make" in line]
    assert len(said) == 1
    assert re.search(r"group g\d+ \(task \S+\) is left out", said[0])


def test_tasks_that_are_all_too_long_end_the_run(play):
    with pytest.raises(ConfigError, match=r"5 groups in a row .* rollout.max_input_tokens 3"):
        play(max_input_tokens=3, max_rejected=5)


def test_every_episode_samples_by_a_seed_of_its_own(play):
    seeds = [entry.sampling.seed for entry in play(steps=2).engine.journal]
    assert None not in seeds
    assert len(set(seeds)) == len(seeds)


# ---------------------------------------------------------------- failures
def dying(times: int) -> dict[int, list[Say]]:
    """The engine fails `times` times on task 1."""
    return {1: [Say([5], fail_after=0) for _ in range(times)]}


def test_an_infrastructure_failure_is_played_again(play):
    found = play(trouble=dying(1), steps=3)
    assert "g1" in found.trained
    asked = [e for e in found.engine.journal if e.session_id.startswith("g1-")]
    assert len(asked) == GROUP_SIZE + 1
    assert found.buffer.dropped == {}
    assert set(found.finished.outcomes) == {"completed"}


def test_a_lasting_infrastructure_failure_drops_its_whole_group(play):
    found = play(trouble=dying(4), max_retries=1, steps=4)
    assert found.groups["g1"][:2] == ("dropped", "infra_error")
    assert found.buffer.dropped == {"infra_error": 1}
    assert found.finished.outcomes["infra_error"] >= 1
    assert len(found.trained) == 4 * B


def test_one_failed_member_drops_its_group_and_is_no_reward_of_zero(play):
    class FailsOnce(NumberEnv):
        failed = False

        async def step(self, action):
            if self.number == 1 and not FailsOnce.failed:
                FailsOnce.failed = True
                raise KeyError("lost")
            return await super().step(action)

    found = play(env=FailsOnce, steps=4)
    assert found.groups["g1"][:2] == ("dropped", "env_error")
    assert found.finished.outcomes["env_error"] == 1
    assert "g1" not in found.trained


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_environment_that_hangs_costs_its_group_and_is_no_reward_of_zero(play, call):
    class HangsOnce(NumberEnv):
        hung = False

        async def _hang(self, name, number):
            if (name, number) == (call, 1) and not HangsOnce.hung:
                HangsOnce.hung = True
                await asyncio.Event().wait()

        async def reset(self, *, seed=None, options=None):
            await self._hang("reset", options["task"].seed)
            return await super().reset(seed=seed, options=options)

        async def step(self, action):
            await self._hang("step", self.number)
            return await super().step(action)

    found = play(env=lambda buffer: Timeout(HangsOnce(buffer), 0.05), steps=4)
    assert found.groups["g1"][:2] == ("dropped", "env_error")
    assert "g1" not in found.trained
    assert len(found.trained) == 4 * B


class FailingEnv(NumberEnv):
    async def step(self, action):
        raise KeyError("the world is flat")


class FailingAgent(Agent):
    async def run(self, env, client, *, model, task):
        raise RuntimeError("this agent is broken")


@pytest.mark.parametrize(
    ("settings", "outcome", "said"),
    [
        ({"env": FailingEnv}, "env_error", "the world is flat"),
        ({"agent": FailingAgent}, "agent_error", "this agent is broken"),
        ({"trouble": {n: dying(4)[1] for n in range(40)}}, "infra_error", "scripted failure"),
    ],
)
def test_a_run_whose_episodes_keep_failing_ends_and_says_why(play, settings, outcome, said):
    with pytest.raises(TooManyErrors, match=f"(?s){said}.*13 of the last.*{outcome}"):
        play(**settings, max_retries=0)


# ---------------------------------------------------------------- should_accept
class Mixed(NumberEnv):
    """Of every second task all episodes score alike."""

    async def step(self, action):
        step = await super().step(action)
        return step if self.number % 2 else step._replace(reward=0.5)


def test_groups_of_equal_rewards_can_be_filtered(play):
    found = play(env=Mixed, should_accept="mixed_rewards", max_rejected=8)  # in a row, that is
    for shard in found.shards:
        scores = defaultdict(set)
        for name, reward in zip(shard.group_ids, shard.rewards, strict=True):
            scores[name].add(reward)
        assert all(len(rewards) > 1 for rewards in scores.values())
    filtered = {name for name, group in found.groups.items() if group[1] == "filtered"}
    assert len(filtered) == found.buffer.dropped["filtered"] >= STEPS * B - B
    assert len(found.trained) == STEPS * B


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"should_accept": "operator:not_", "max_rejected": 5}, "rollout.max_rejected"),
        ({"should_accept": "math:sqrt"}, "math:sqrt"),  # raises: a list is no number
    ],
)
def test_a_filter_that_cannot_work_ends_the_run(play, settings, said):
    with pytest.raises(ConfigError, match=said):
        play(**settings)
