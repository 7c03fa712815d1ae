"""Sessions of other programs: groups, seats, rewards, deadlines; and the admin key."""

import asyncio
import json

import pytest
from arl_serve.app import AdminApp
from arl_serve.session_groups import ABANDONED_S, SessionGroups

from agentgym_rl.config import load_config
from agentgym_rl.controller import Buffer
from agentgym_rl.core import Outcome
from agentgym_rl.rollout import OpenGroups
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.storage.recovery import NOTHING, recover
from tests.kit.cases import cases

KEY = "admin-key"


class Office:
    """Session groups before a scripted engine, spoken to as other programs do."""

    def __init__(self, scene, folder, recovered=NOTHING, **keys):
        settings = {"rollout.group_size": 2, "rollout.groups_per_batch": 1, **keys}
        self.config = load_config(None, settings)
        self.buffer = Buffer(self.config.rollout, total_groups=100)
        self.log = EpisodeLog(folder / "episodes.db")
        self.scene = scene
        groups = OpenGroups(self.config.rollout, self.buffer, self.log, recovered)
        config = self.config
        self.session_groups = SessionGroups(
            config.serve,
            config.rollout,
            scene.gateway,
            groups,
            seed=config.seed,
            steps=config.steps,
        )
        scene.gateway.app = AdminApp(scene.gateway.app, self.session_groups, admin_key=KEY)

    async def ask(self, method, path, key=KEY, **body):
        headers = {"authorization": f"Bearer {key}"}
        data = json.dumps(body).encode()
        return await self.scene.request(method, f"/admin/v1/{path}", data, headers)

    async def open(self, task="t1"):
        answer = await self.ask("POST", "sessions", task=task)
        assert answer.status == 201, answer.data
        return answer.body

    async def play(self, reward, task="t1", **close):
        """A session of one turn, closed; what it came to."""
        opened = await self.open(task)
        await self.scene.post(opened["api_key"], messages=[{"role": "user", "content": "Hi"}])
        return await self.ask("POST", f"sessions/{opened['id']}/close", reward=reward, **close)


@pytest.fixture
def office(stage, spell, words, tmp_path):
    offices = []

    def make(recovered=NOTHING, **keys):
        scene = stage(lambda _: spell.bytewise("ab" + words.END))
        offices.append(Office(scene, tmp_path, recovered, **keys))
        return offices[-1]

    yield make
    for one in offices:
        one.log.close()


def test_sessions_of_one_task_become_a_group_that_trains(office):
    one = office()

    async def play():
        return [await one.play(reward) for reward in (1, 0.25)]

    answers = asyncio.run(play())
    assert [answer.body["outcome"] for answer in answers] == ["completed"] * 2
    [group] = one.buffer.take()
    assert [member.reward for member in group.members] == [1.0, 0.25]
    assert all(member.num_trained == 3 for member in group.members)
    assert group.task_id == "t1"


def test_a_group_that_was_whole_before_a_kill_trains_though_its_task_is_asked_for(office):
    before = office(**{"rollout.group_size": 3})

    async def play():
        for reward in (1, 0.25):
            await before.play(reward)

    asyncio.run(play())
    found = recover(before.log.path, step=0, checkpoint=None, incarnation=1)
    one = office(found)
    one.log.begin(step=0, checkpoint="", num_ranks=1)

    async def go_on():
        full = await one.ask("POST", "sessions", task="t1")
        await one.session_groups._go_on()
        return full

    assert asyncio.run(go_on()).status == 429
    [group] = one.buffer.take()
    assert (group.group_id, [member.reward for member in group.members]) == ("g0", [1.0, 0.25])


def test_rewards_add_up_and_closing_is_safe_to_repeat(office):
    one = office()

    async def play():
        path = f"sessions/{(await one.open())['id']}"
        for reward in (0.5, 0.25):
            await one.ask("POST", f"{path}/rewards", reward=reward)
        first = await one.ask("POST", f"{path}/close", reward=0.25)
        again = await one.ask("POST", f"{path}/close", reward=0.25)
        late = await one.ask("POST", f"{path}/rewards", reward=1)
        return first, again, late, await one.ask("GET", path)

    first, again, late, told = asyncio.run(play())
    assert first.body["reward"] == 1.0
    assert first.body == again.body == told.body
    assert (late.status, late.headers["x-should-retry"]) == (410, "false")


def test_rewards_of_turns_are_in_the_log(office):
    one = office()

    async def play():
        opened = await one.open()
        path, ask = f"sessions/{opened['id']}", [{"role": "user", "content": "Hi"}]
        reply = (await one.scene.post(opened["api_key"], messages=ask)).body
        ask += [reply["choices"][0]["message"], *ask]
        await one.scene.post(opened["api_key"], messages=ask)
        await one.ask("POST", f"{path}/rewards", reward=-1, turn=reply["id"])
        await one.ask("POST", f"{path}/rewards", reward=2, turn=1)
        await one.ask("POST", f"{path}/rewards", reward=0.25, lineage=0)
        await one.ask("POST", f"{path}/close")
        await one.play(1)

    asyncio.run(play())
    paid, plain = one.log.trajectories()
    assert (paid.reward, plain.credit.turn_returns(0.5)) == (0.0, [])
    assert paid.credit.turn_returns(0.5) == [-1 + 0.5 * 2 + 0.25, 2.25]


def test_a_failed_session_gives_its_seat_back(office):
    one = office()

    async def play():
        await one.play(1)
        failed = await one.play(0, outcome="agent_error", error="it broke")
        return failed, await one.play(0)

    failed, _ = asyncio.run(play())
    assert (failed.body["outcome"], failed.body["error"]) == ("agent_error", "it broke")
    [group] = one.buffer.take()
    assert [member.reward for member in group.members] == [1.0, 0.0]


ALONE = {
    "rollout.group_size": 1,
    "algo.baseline": "batch_mean",
    "algo.scale": "batch_std",
    "rollout.max_staleness": 0,
}


@cases("size", [1, 2])
def test_failed_sessions_take_no_room(office, size):
    one = office(**ALONE | {"rollout.group_size": size})

    async def play():
        for number in range(12):
            opened = await one.open(f"t{number}")
            assert (await one.ask("POST", "sessions", task="other")).status == 429
            if number % 2:
                failed = {"outcome": "env_error", "error": "it broke"}
                await one.ask("POST", f"sessions/{opened['id']}/close", **failed)
            else:
                await one.session_groups._leave(
                    one.session_groups.find(opened["id"]), Outcome.ABORTED, "not used"
                )
            assert one.buffer.running == 0
        return await one.open("t0")

    assert asyncio.run(play())["group"] == "g0"  # a group goes on where it failed


def test_a_failed_group_remembers_the_data_of_its_task(office):
    one = office()

    async def play():
        opened = (await one.ask("POST", "sessions", task="t", data={"n": 1})).body
        await one.ask("POST", f"sessions/{opened['id']}/close", outcome="agent_error")
        other = await one.ask("POST", "sessions", task="t", data={"n": 2})
        again = (await one.ask("POST", "sessions", task="t")).body
        return other.status, one.session_groups.find(again["id"]).group.task.data, again["id"]

    assert asyncio.run(play()) == (400, {"n": 1}, "g0-1")


def test_the_group_left_alone_the_longest_makes_room_where_nothing_else_can(office):
    one = office(**{"rollout.max_staleness": 0, "rollout.groups_per_batch": 2})

    async def play():
        for task in ("a", "b"):
            await one.play(1, task)
        refused = await one.ask("POST", "sessions", task="c")
        now = one.session_groups._filling["b"].left_s
        dropped = []
        for later, wanted in ((ABANDONED_S - 1, True), (ABANDONED_S + 1, False)):
            await one.session_groups._make_room(now + later)
            dropped.append(dict(one.buffer.dropped))
            one.session_groups._wanted = not wanted
        await one.session_groups._make_room(now + ABANDONED_S + 1)
        return refused.error["message"], [*one.session_groups._filling], dropped

    said, left, dropped = asyncio.run(play())
    assert "2 groups wait for more sessions, such as that of task 'a', with 1 of 2" in said
    assert (left, dropped) == (["b"], [{}, {}])
    assert dict(one.buffer.dropped) == {"incomplete": 1}


def test_an_open_session_or_a_busy_trainer_keeps_incomplete_groups(office):
    one = office(**{"rollout.max_staleness": 0, "rollout.groups_per_batch": 2})

    async def play():
        await one.play(1, "a")
        await one.open("b")
        said = await one.ask("POST", "sessions", task="c")
        await one.session_groups._make_room(1e9)
        return said.error["message"]

    asyncio.run(play())
    assert ([*one.session_groups._filling], dict(one.buffer.dropped)) == (["a", "b"], {})


def test_a_program_that_fails_by_the_models_fault_still_trains(office):
    one = office()
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    ask = [{"role": "user", "content": "Hi"}]

    async def play():
        opened = await one.open()
        await one.scene.post(opened["api_key"], messages=ask, response_format=form)
        path = f"sessions/{opened['id']}/close"
        await one.ask("POST", path, outcome="agent_error", error="no JSON")
        return await one.play(1)

    asyncio.run(play())
    missed, _ = one.log.trajectories()
    assert (missed.outcome, missed.reward, missed.metrics["forced_missed"]) == ("truncated", 0, 1)
    assert missed.error.startswith("the model's reply was no JSON of the schema")
    assert missed.error.endswith("; no JSON")


def test_a_program_may_name_the_tools_of_its_main_lineage(office):
    one = office()
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    ask = [{"role": "user", "content": "Hi"}]

    async def play():
        opened = (await one.ask("POST", "sessions", task="t1", main_tools=["look"])).body
        for fields in ({}, {"tools": [tool]}):
            await one.scene.post(opened["api_key"], messages=ask, **fields)
        await one.ask("POST", f"sessions/{opened['id']}/close", reward=1)
        wrong = await one.ask("POST", "sessions", task="t1", main_tools="look")
        await one.play(1)
        return wrong

    wrong = asyncio.run(play())
    helped, _ = one.log.trajectories()
    assert [row.lineage for row in helped.rows] == [1, 0]
    assert (wrong.status, "main_tools" in wrong.error["message"]) == (400, True)


def test_an_engine_that_fails_is_nobodys_reward(office, words, spell):
    one = office()
    say = words.Say(spell.bytewise("ab" + words.END), fail_after=1)
    one.scene.engine._script = lambda _: say
    answer = asyncio.run(one.play(1))
    assert answer.body["outcome"] == "infra_error"
    assert (one.buffer.running, dict(one.buffer.dropped)) == (0, {})


def test_a_session_whose_first_prompt_is_too_long_is_no_reward_of_0(office):
    one = office()

    async def play():
        other = await one.open("long")
        opened = await one.open("long")
        asked = [{"role": "user", "content": "word " * 5000}]
        refused = await one.scene.post(opened["api_key"], messages=asked)
        closed = await one.ask("POST", f"sessions/{opened['id']}/close", reward=0)
        return refused, closed, await one.ask("GET", f"sessions/{other['id']}")

    refused, closed, other = asyncio.run(play())
    assert refused.body["error"]["code"] == "context_length_exceeded"
    assert closed.body["outcome"] == "too_long"
    assert (other.body["outcome"], dict(one.buffer.dropped)) == ("aborted", {"too_long": 1})
    assert one.buffer.running == 0


def test_there_are_no_more_sessions_than_seats_and_no_more_groups_than_admitted(office):
    one = office(**{"rollout.max_staleness": 0})

    async def play():
        for _ in range(2):
            await one.open("a")
        full = await one.ask("POST", "sessions", task="a")
        return full, await one.ask("POST", "sessions", task="b")

    for answer in asyncio.run(play()):
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert answer.headers["x-should-retry"] == "true"


def test_sessions_and_groups_that_are_left_alone_end(office):
    one = office(**{"serve.idle_timeout_s": 5.0, "serve.group_timeout_s": 50.0})

    async def play():
        await one.play(1)
        opened = await one.open()
        client = one.session_groups.find(opened["id"])
        await one.session_groups._look(client.opened_s + 6)
        left = one.session_groups.find(opened["id"])
        await one.session_groups._look(client.opened_s + 60)
        asked = await one.scene.post(opened["api_key"], messages=[{"role": "user", "content": "x"}])
        return left, asked

    left, asked = asyncio.run(play())
    assert (left["outcome"], asked.status) == ("aborted", 410)
    assert "serve.idle_timeout_s" in left["error"]
    assert dict(one.buffer.dropped) == {"incomplete": 1}
    assert one.buffer.running == 0


@cases("key", ["", "admin-ke", "Admin-key", "\u00fc"])
def test_only_the_admin_key_opens_sessions(office, key):
    one = office()
    assert asyncio.run(one.ask("POST", "sessions", key=key, task="a")).status == 401
    assert asyncio.run(one.ask("GET", "status", key=key)).status == 401


def test_a_sessions_key_does_not_open_sessions_nor_the_admin_key_ask(office):
    one = office()

    async def play():
        opened = await one.open()
        other = await one.ask("POST", "sessions", key=opened["api_key"], task="a")
        return other, await one.scene.post(KEY, messages=[{"role": "user", "content": "x"}])

    assert [answer.status for answer in asyncio.run(play())] == [401, 401]


@cases(
    "path, body, said",
    [
        ("sessions", {}, "task: a group has 2 sessions"),
        ("sessions", {"task": 3}, "task: got 3"),
        ("sessions", {"task": ""}, "task: got ''"),
        ("sessions", {"task": "a", "data": []}, "data: expected an object"),
        ("sessions", {"task": "a", "temperature": 0}, "temperature: got 0"),
        ("sessions", {"task": "a", "temperatur": 1}, "unknown: temperatur"),
        ("sessions/ID/rewards", {}, "reward is missing"),
        ("sessions/ID/rewards", {"reward": "1"}, "reward: got '1'"),
        ("sessions/ID/rewards", {"reward": 10**400}, "reward: got a number of"),
        ("sessions/ID/rewards", {"reward": 1e308}, ": a reward must be finite"),
        ("sessions/ID/rewards", {"reward": -2e12}, "within ±1e+12; got -20000"),
        ("sessions/ID/rewards", {"reward": float("inf")}, ""),
        ("sessions/ID/close", {"reward": 1e308}, "got 1e+308"),
        ("sessions/ID/rewards", {"reward": 1, "turn": 0}, "has answered 0 turns"),
        ("sessions/ID/rewards", {"reward": 1, "turn": 0.5}, "turn: got 0.5"),
        ("sessions/ID/rewards", {"reward": 1, "lineage": True}, "lineage: got True"),
        ("sessions/ID/close", {}, "the episode has no reward"),
        ("sessions/ID/close", {"outcome": "infra_error"}, "allowed: completed, truncated"),
    ],
)
def test_what_is_wrong_is_said(office, path, body, said):
    one = office()

    async def play():
        opened = await one.open()
        return await one.ask("POST", path.replace("ID", opened["id"]), **body)

    answer = asyncio.run(play())
    assert answer.status == 400
    assert said in answer.error["message"]


def test_sessions_of_a_group_share_the_data_of_its_task(office):
    one = office()

    async def statuses():
        answers = [
            await one.ask("POST", "sessions", task="t1", **body)
            for body in ({"data": {"n": 1}}, {"data": {"n": 2}}, {"data": {"n": 1}})
        ]
        assert "the group of task 't1' was opened with other data" in answers[1].error["message"]
        return [answer.status for answer in answers]

    assert asyncio.run(statuses()) == [201, 400, 201]


def test_a_session_without_data_joins_a_group_that_has_some(office):
    one = office()

    async def statuses():
        first = await one.ask("POST", "sessions", task="t1", data={"n": 1})
        return [first.status, (await one.ask("POST", "sessions", task="t1")).status]

    assert asyncio.run(statuses()) == [201, 201]


@cases("data", [b"{", b"[]", b"\xff", b"[" * 50_000])
def test_a_body_that_is_no_object_is_400(office, data):
    one = office()
    headers = {"authorization": f"Bearer {KEY}"}
    answer = asyncio.run(one.scene.request("POST", "/admin/v1/sessions", data, headers))
    assert answer.status == 400


def test_what_ends_the_run_is_raised_where_the_run_waits(office):
    alone = {"rollout.group_size": 1, "algo.baseline": "batch_mean", "algo.scale": "none"}
    one = office(**alone)
    one.session_groups._groups.finished._should_accept = lambda members: 1 / 0

    async def play():
        answer = await one.play(1)
        with pytest.raises(ValueError, match="raised ZeroDivisionError"):
            async with asyncio.timeout(60):
                await one.session_groups.run()
        return answer

    assert asyncio.run(play()).status == 503
