"""Games of several seats: one session for each, one record for all, one failure for all."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from arl_agents.react import React
from arl_envs.games.kuhn import KuhnPoker
from arl_envs.games.tictactoe import TicTacToe
from arl_selfplay.game import _joined, check_seats, check_single_agent, seated
from tokenizers import Tokenizer

from agentgym_rl import Agent
from agentgym_rl.config import Config, GatewayConfig
from agentgym_rl.core import ConfigError, Credit, InfraError, Outcome, Task, Trajectory
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import EnvSpec, spec
from agentgym_rl.gym.seats import LEFT
from agentgym_rl.gym.specs import WrapperSpec, wrapped
from agentgym_rl.gym.wrappers import Wrapper
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines
from tests.kit.cases import cases

GAME = Task("t", 7)
SELF_PLAY = {"x": "policy", "o": "policy"}
SPEC = EnvSpec(id="game", entry_point="")
SAMPLING = SessionSampling(max_tokens=48, temperature=1.0, seed=5)
X_WINS = ["1", "4", "2", "5", "3"]


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


class Stage:
    """Scripted models, by the name of their players, and a player of games with them."""

    def __init__(self, chat, **replies):
        self.chat, self.stack = chat, contextlib.AsyncExitStack()
        self.limits = Deadlines(episode_s=200, turn_s=100)
        self.engines = {name: ScriptedEngine(self._said(of)) for name, of in replies.items()}

    def _said(self, replies):
        encode = self.chat.encode
        return [r if isinstance(r, Say) else encode(f"{r}<|im_end|>") for r in replies]

    async def single_agent(self, name, env, agent, env_spec):
        config = GatewayConfig()
        gateway = Gateway(
            self.engines[name], self.chat, config=config, model_name=name, max_model_len=512
        )
        url = await self.stack.enter_async_context(gateway.serve())
        clients = await self.stack.enter_async_context(AgentClients(url))
        make = lambda: wrapped(env(), env_spec)  # noqa: E731
        return Player(make, agent, gateway, clients, name, self.limits)

    async def player(self, seats, env=TicTacToe, agent=React, env_spec=SPEC, **options):
        found = {name: await self.single_agent(name, env, agent, env_spec) for name in self.engines}
        policy = found.pop("policy")
        return seated(policy, seats, opponents=found, **options)


def play(chat, seats=SELF_PLAY, env=TicTacToe, agent=React, env_spec=SPEC, **replies):
    """One game between scripted models, of which the one named "policy" is the policy."""

    async def main() -> Trajectory:
        stage = Stage(chat, **replies)
        async with stage.stack:
            player = await stage.player(seats, env, agent, env_spec)
            return await player.play(GAME, episode_id="e", group_id="g", sampling=SAMPLING)

    return asyncio.run(main())


def test_two_seats_share_the_policy_and_are_one_record(chat):
    found = play(chat, policy=X_WINS)
    assert (found.outcome, found.reward, found.num_turns) == (Outcome.COMPLETED, 0.0, 5)
    assert [(s.seat, s.player, s.reward) for s in found.seats] == [
        ("x", "policy", 1.0),
        ("o", "policy", -1.0),
    ]
    assert (found.metrics["reward_x"], found.metrics["reward_o"]) == (1.0, -1.0)
    assert (found.metrics["won"], found.metrics["lost_as_o"]) == (0.5, 1.0)
    assert [m["content"] for m in found.seats[1].messages if m["role"] == "assistant"] == ["4", "5"]


def test_every_token_of_every_seat_is_recorded_and_trains(chat):
    found = play(chat, policy=X_WINS)
    each = len(chat.encode("1<|im_end|>"))
    assert [seat.num_trained for seat in found.seats] == [3 * each, 2 * each]
    assert [id(row) for row in found.rows] == [id(r) for s in found.seats for r in s.rows]
    said = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).decode(
        found.rows[1].tokens.tolist()
    )
    assert "You are O" in said
    assert "You are X" not in said


def turns(row):
    return [int(turn) for turn in dict.fromkeys(row.turn_ids.tolist()) if turn >= 0]


def test_turns_rows_and_lineages_are_numbered_throughout_the_game(chat):
    found = play(chat, policy=X_WINS)
    assert [turns(row) for row in found.rows] == [[0, 1, 2], [3, 4]]
    assert [row.lineage for row in found.rows] == [0, 1]
    assert list(found.credit.parents) == [-1, 0, 1, -1, 3]
    assert list(found.credit.lineages) == [0, 0, 0, 1, 1]
    assert all(seat.credit is found.credit for seat in found.seats)
    assert not found.credit.turn_rewards


def test_a_record_comes_back_from_its_bytes_with_its_seats(chat):
    found = play(chat, policy=X_WINS)
    found.keep_packed()
    again = Trajectory.unpack(found.pack())
    assert [(s.seat, s.reward, len(s.rows), s.actions) for s in again.seats] == [
        (s.seat, s.reward, len(s.rows), s.actions) for s in found.seats
    ]
    assert [r.tokens.tolist() for r in again.rows] == [r.tokens.tolist() for r in found.rows]
    assert again.pack() == found.pack()


def test_rewards_of_turns_stay_with_their_seat(chat):
    one = play(chat, policy=X_WINS)
    x, o = one.seats
    paid = replace(o, credit=Credit(0.0, (-1, 0), (0, 0), (0.0, 2.0), (1.0,)))
    plain = replace(x, credit=Credit(0.0, (-1, 0, 1), (0, 0, 0)))
    for seat, first in ((paid, 3), (plain, 0)):
        for row in seat.rows:
            row.turn_ids[row.turn_ids >= 0] -= first
    whole = _joined([plain, paid], episode_id="e")
    assert whole.credit.turn_returns(0.5) == [0.0, 0.0, 0.0, 2.0, 3.0]
    assert turns(whole.rows[1]) == [3, 4]


def test_a_game_of_earlier_logs_has_no_seats(chat):
    whole = replace(play(chat, policy=X_WINS), seats=())
    assert Trajectory.unpack(whole.pack()).parts[0].episode_id == "e"


def test_seats_sample_with_seeds_of_their_own(chat):
    async def main():
        stage = Stage(chat, policy=X_WINS)
        async with stage.stack:
            player = await stage.player(SELF_PLAY)
            await player.play(GAME, episode_id="e", group_id="g", sampling=SAMPLING)
        return stage.engines["policy"].journal

    journal = asyncio.run(main())
    assert len({entry.sampling.seed for entry in journal}) == 5
    assert [entry.session_id for entry in journal] == ["e.x", "e.o", "e.x", "e.o", "e.x"]


def test_a_player_of_the_game_needs_no_model(chat):
    found = play(chat, {"x": "policy", "o": "env:oracle"}, policy=["5", "0"])
    assert [seat.seat for seat in found.seats] == ["x"]
    assert (found.reward, found.num_turns) == (-1.0, 2)


def test_another_model_plays_but_does_not_train(chat):
    seats = {"x": "policy", "o": "frozen:old"}
    replies = {"policy": ["1", "2", "3"], "frozen:old": ["4", "5"]}
    found = play(chat, seats, **replies)
    assert [(s.player, s.num_trained > 0) for s in found.seats] == [
        ("policy", True),
        ("frozen:old", False),
    ]
    assert [part.seat for part in found.parts] == ["x"]
    assert (found.reward, found.metrics["reward_o"]) == (1.0, -1.0)


def test_players_rotate_from_task_to_task_and_not_within_one(chat):
    seats = {"x": "policy", "o": "frozen:old"}

    async def main():
        stage = Stage(chat, **{"policy": [], "frozen:old": []})
        async with stage.stack:
            player = await stage.player(seats, rotates=True)
            return [[player._seats_of(Task("t", seed)) for _ in range(2)] for seed in range(20)]

    found = asyncio.run(main())
    assert all(one == other for one, other in found)
    assert {tuple(one.items()) for one, _ in found} == {
        (("x", "policy"), ("o", "frozen:old")),
        (("x", "frozen:old"), ("o", "policy")),
    }


class Fails(TicTacToe):
    async def act(self, seat, action):
        if seat == "o":
            raise self.error
        return await super().act(seat, action)


class Blind(TicTacToe):
    def observe(self, seat):
        raise KeyError(seat)


class Stuck(TicTacToe):
    """A game that never passes the turn on."""

    async def act(self, seat, action):
        return {}


class NotStarted(TicTacToe):
    async def start(self, *, seed, options):
        raise InfraError("no board")


class Unfair(TicTacToe):
    def _end(self, *, winner):
        super()._end(winner=winner)
        self.rewards = {"x": 1.0, "o": 1.0}


class BreaksAtO(Agent):
    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        if "You are O" in messages[0]["content"]:
            raise RuntimeError("the agent of o broke")
        reply = await client.chat.completions.create(model=model, messages=messages)
        step = await env.step({"role": "assistant", "content": reply.choices[0].message.content})
        assert step.truncated
        assert step.info["stop_reason"] == LEFT


def failing(error):
    def make():
        env = Fails()
        env.error = error
        return env

    return make


def test_a_failure_of_one_seat_is_that_of_the_game(chat):
    found = play(chat, env=failing(InfraError("gone")), policy=X_WINS)
    assert (found.outcome, found.error) == (Outcome.INFRA_ERROR, "seat o: gone")
    found = play(chat, env=failing(ValueError("a bug")), policy=X_WINS)
    assert found.outcome is Outcome.ENV_ERROR
    found = play(chat, agent=BreaksAtO, policy=X_WINS)
    assert (found.outcome, "the agent of o broke" in found.error) == (Outcome.AGENT_ERROR, True)
    found = play(chat, policy=["1", Say([1, 2], fail_after=1)])
    assert found.outcome is Outcome.INFRA_ERROR


def test_a_game_that_cannot_be_seen_or_started_fails_as_a_whole(chat):
    found = play(chat, env=Blind, policy=X_WINS)
    assert (found.outcome, "KeyError: 'x'" in found.error) == (Outcome.ENV_ERROR, True)
    found = play(chat, env=NotStarted, policy=X_WINS)
    assert (found.outcome, found.reward) == (Outcome.INFRA_ERROR, 0.0)
    assert not found.outcome.trains


def test_a_game_whose_turn_never_ends_is_stopped(chat):
    found = play(chat, {"x": "env:random", "o": "policy"}, env=Stuck, policy=X_WINS)
    assert found.outcome is Outcome.ENV_ERROR
    assert "10,000 times in a row, last at seat x" in found.error
    ends = EnvSpec(id="game", entry_point="", max_turns=3)
    found = play(chat, env=Stuck, env_spec=ends, policy=["1"] * 3)
    assert (found.outcome, [seat.num_turns for seat in found.seats]) == (Outcome.TRUNCATED, [3, 0])


def test_unequal_players_rotate_over_all_seats(chat):
    seats = {"a": "policy", "b": "policy", "c": "env:random"}

    async def main():
        stage = Stage(chat, policy=[])
        async with stage.stack:
            player = await stage.player(seats, rotates=True)
            return [player._seats_of(Task("t", seed)) for seed in range(30)]

    found = asyncio.run(main())
    assert all(sorted(one.values()) == sorted(seats.values()) for one in found)
    assert {at for one in found for at, who in one.items() if who == "env:random"} == {*seats}


class HangsAtItsEnd(TicTacToe):
    """A game whose last move is cut off by the time limit of a step, when it is already over."""

    step_timeout_s = 0.05

    async def act(self, seat, action):
        info = await super().act(seat, action)
        if self.turn is None:
            await asyncio.Event().wait()
        return info


class TurnsAtALook(TicTacToe):
    def observe(self, seat):
        self.turn = "x"
        return super().observe(seat)


def played_without_limit(chat, **kind):
    """A game whose seats have no time limit as long as they step, as by default."""

    async def main():
        stage = Stage(chat, policy=X_WINS)
        stage.limits = Deadlines(None, turn_s=60)
        async with stage.stack, asyncio.timeout(60):
            player = await stage.player(SELF_PLAY, **kind)
            return await player.play(GAME, episode_id="e", group_id="g", sampling=SAMPLING)

    return asyncio.run(main())


@cases(
    "game, said",
    [
        (Unfair, "zero_sum"),
        (HangsAtItsEnd, "cut off in the middle"),
        (TurnsAtALook, "observe changed the turn from 'o' to 'x'"),
    ],
)
def test_a_game_that_breaks_ends_for_all_seats_at_once(chat, game, said):
    found = played_without_limit(chat, env=game)
    assert [seat.outcome for seat in found.seats] == [Outcome.ENV_ERROR] * 2
    assert any(said in seat.error for seat in found.seats), found.error


class Stays(Wrapper):
    """A wrapper of a user that fails where seat x should leave the game."""

    async def close(self):
        raise RuntimeError("it does not close")


STAYS = WrapperSpec(entry_point=f"{__name__}:Stays")


def test_a_seat_whose_environment_does_not_close_is_left(chat):
    wraps = EnvSpec(id="game", entry_point="", wrappers=(STAYS,), max_turns=1)
    found = played_without_limit(chat, env_spec=wraps)
    assert (found.outcome, found.num_turns) == (Outcome.TRUNCATED, 2)


class MadeOnce(TicTacToe):
    """A game whose second seat cannot be made."""

    made = 0

    @property
    def unwrapped(self):
        type(self).made += 1
        if self.made > 1:
            raise RuntimeError("no second seat")
        return self


def test_a_seat_that_cannot_be_made_is_left(chat):
    MadeOnce.made = 0
    found = played_without_limit(chat, env=MadeOnce)
    assert [seat.outcome for seat in found.seats] == [Outcome.TRUNCATED, Outcome.ENV_ERROR]


def test_a_seat_at_its_limit_of_turns_truncates_the_game(chat):
    found = play(chat, env_spec=EnvSpec(id="game", entry_point="", max_turns=1), policy=X_WINS)
    assert (found.outcome, found.num_turns) == (Outcome.TRUNCATED, 2)
    assert [seat.reward for seat in found.seats] == [0.0, 0.0]


def test_cards_stay_hidden_and_chips_add_up(chat):
    seats = {"first": "policy", "second": "policy"}
    found = play(chat, seats, env=KuhnPoker, policy=["check", "bet", "call"])
    assert sum(seat.reward for seat in found.seats) == 0
    hidden = [seat.messages[0]["content"] for seat in found.seats]
    assert all(text.count("have the") == 1 for text in hidden)


def test_the_player_of_evaluations_is_alone(chat):
    async def main():
        stage = Stage(chat, policy=["0"])
        async with stage.stack:
            player = (await stage.player(SELF_PLAY)).single_agent
            return await player.play(GAME, episode_id="e", group_id="g", sampling=SAMPLING)

    found = asyncio.run(main())
    assert (found.seats, found.reward, found.num_turns) == ((), -1.0, 1)


class Solitaire(TicTacToe):
    seats = ("x",)


class OnlyPeople(TicTacToe):
    players = ()


def test_a_game_without_players_is_not_played_from_one_seat():
    game = spec("tictactoe")
    for fine in (TicTacToe(), Solitaire(), spec("math").make()):
        check_single_agent(game, fine)
    with pytest.raises(ConfigError, match=r"no players of its own for its seats, x, o.*eval\.num"):
        check_single_agent(game, OnlyPeople())


def test_seats_are_checked_before_a_run():
    game, env = spec("tictactoe"), TicTacToe()
    check_seats(SELF_PLAY, game, env)
    wrong = {
        "has the seats x, o": {"x": "policy"},
        "env:random, env:erring, env:oracle": {"x": "policy", "o": "env:god"},
        "did you mean x": {"x_": "policy", "o": "policy"},
        "did you mean env:oracle": {"x": "policy", "o": "env:oracel"},
    }
    for said, seats in wrong.items():
        with pytest.raises(ConfigError, match=said):
            check_seats(seats, game, env)
    with pytest.raises(ConfigError, match="no MultiSeatEnv"):
        check_seats(SELF_PLAY, spec("math"), spec("math").make())
    with pytest.raises(ConfigError, match="has one seat, the policy's own"):
        check_seats({"x": "policy"}, game, Solitaire())
    with pytest.raises(ConfigError, match="max_attempts 2"):
        check_seats(SELF_PLAY, game.with_options(max_attempts=2), env)
    with pytest.raises(ConfigError, match="no folder"):
        check_seats({"x": "policy", "o": "frozen:/no/such"}, game, env)


@cases(
    "rollout, said",
    [
        ({"seats": {"x": "someone"}}, "allowed are policy, env:NAME"),
        ({"seats": {"x": "polciy"}}, "did you mean policy"),
        ({"seats": {"x": "Policy", "o": "policy"}}, "did you mean policy"),
        ({"seats": {"x": "policy", "o": "url:host:8000#m"}}, "url:http://HOST/v1#NAME"),
        ({"seats": SELF_PLAY, "group_size": 1}, "group_size 1 .* trains nothing"),
        ({"seats": {"x": "url:http://host/v1"}}, "url:http://HOST/v1#NAME"),
        ({"seats": {"x": "env:"}}, "allowed are policy"),
        ({"seats": {"x": "env:random"}}, "nothing would be trained"),
        ({"seats": SELF_PLAY, "rotate_seats": True}, "rotate_seats changes nothing"),
        ({"league_every": 3}, "without a seat of the league"),
        ({"seats": {"x": "policy", "o": "league"}}, "keep_versions 'all'"),
        ({"seats": {"x": "policy", "o": "frozen:a"}, "workers": 1}, "set workers to 0"),
    ],
)
def test_seats_that_cannot_work_are_refused(rollout, said):
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"rollout": rollout})


def test_an_environment_without_seats_cannot_be_a_game(chat):
    class NoGame(TicTacToe):
        @property
        def unwrapped(self):
            return object()

    found = play(chat, env=NoGame, policy=X_WINS)
    assert (found.outcome, "has no seats" in found.error) == (Outcome.ENV_ERROR, True)


class OverAtOnce(TicTacToe):
    """A game that the first move wins."""

    async def act(self, seat, action):
        await super().act(seat, action)
        self._end(winner=seat)
        return {}


def test_a_seat_without_a_turn_asks_no_model_and_is_paid(chat):
    found = play(chat, env=OverAtOnce, policy=["1"])
    assert (found.outcome, found.num_turns) == (Outcome.COMPLETED, 1)
    assert [(s.reward, s.num_turns, len(s.rows)) for s in found.seats] == [
        (1.0, 1, 1),
        (-1.0, 0, 0),
    ]
    assert found.metrics["lost_as_o"] == 1.0
