"""Games of several seats in a batch: each seat is compared with the same seat of its task."""

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from arl_audit.reverify import not_replayable
from arl_audit.sft import _recorded
from arl_inspect.detail import _messages

from agentgym_rl.algo import episode_advantages
from agentgym_rl.controller import split_batch
from agentgym_rl.controller.batches import tells_apart
from agentgym_rl.core import BatchShard, Credit, Group, Outcome, Task, Trajectory
from agentgym_rl.storage import EpisodeLog, EpisodeReader
from tests.kit.groups import make_row


def game(name: str, rewards: dict[str, float], players: tuple[str, ...] = ("policy", "policy")):
    """A game in which each seat sampled two tokens."""
    seats = [
        Trajectory(f"{name}.{seat}", "g", "t", Outcome.COMPLETED, reward, [make_row([0, 0])])
        for seat, reward in rewards.items()
    ]
    pairs = zip(rewards, players, strict=True)
    seats = [replace(s, seat=at, player=who) for s, (at, who) in zip(seats, pairs, strict=True)]
    rows = [row for seat in seats for row in seat.rows]
    return Trajectory(name, "g", "t", Outcome.COMPLETED, 0.0, rows, seats=seats)


def shard_of(members, **options) -> BatchShard:
    group = Group("g", "t", members)
    (shard,) = split_batch([group], step=0, num_ranks=1, num_minibatches=1, **options)
    return BatchShard.unpack(shard.pack())


def test_advantages_are_relative_to_the_seat_and_not_to_the_game():
    rewards = [(1, -1), (1, -1), (0, 0), (1, -1)]
    shard = shard_of([game(f"e{i}", {"x": x, "o": o}) for i, (x, o) in enumerate(rewards)])
    assert (shard.seats, len(set(shard.group_ids))) == (["x", "o"] * 4, 1)
    found = episode_advantages(shard.rewards, shard.compared, scale="none")
    x, o = found[::2], found[1::2]
    assert torch.allclose(x, torch.tensor([0.25, 0.25, -0.75, 0.25], dtype=torch.float64))
    assert torch.allclose(o, -x)
    whole = episode_advantages(shard.rewards, shard.group_ids, scale="none")
    assert not torch.allclose(whole, found)


def test_rows_of_other_players_are_not_sent_to_the_trainer():
    shard = shard_of([game("e", {"x": 1, "o": -1}, players=("policy", "frozen:old"))])
    assert (shard.seats, shard.rewards, shard.names) == (["x"], [1], ["e.x"])
    assert len(shard.minibatches[0]) == 1


def test_a_batch_without_games_names_no_seats():
    member = replace(game("e", {"x": 1, "o": -1}), seats=())
    shard = shard_of([member, member])
    assert (shard.seats, shard.compared) == ([], ["g", "g"])


def test_turn_rewards_of_a_seat_stay_in_the_seat():
    one = game("e", {"x": 0, "o": 0})
    paid = replace(one.seats[1], credit=Credit(0.0, (-1,), (0,), (2.0,), (0.0,)))
    shard = shard_of([replace(one, seats=[one.seats[0], paid])])
    assert shard.turn_returns == [[], [2.0]]


@pytest.mark.parametrize(
    ("rewards", "told"), [([(1, -1), (1, -1)], False), ([(1, -1), (-1, 1)], True)]
)
def test_a_group_teaches_if_some_seat_has_different_results(rewards, told):
    assert tells_apart([game("e", {"x": x, "o": o}) for x, o in rewards]) is told


def logged(path, member):
    """The log of a game, the only one of its group."""
    with closing(EpisodeLog(path)) as log:
        asyncio.run(log.add_group(Task("t", 1), 0, Group("g", "t", [member])))
    return EpisodeReader(path)


def test_a_game_is_one_entry_of_the_log_with_all_of_its_seats(tmp_path):
    with closing(logged(tmp_path / "episodes.db", game("e", {"x": 1, "o": -1}))) as log:
        assert log.episode_ids(untrained=True) == ["e"]
        found = log.trajectory("e")
    assert [(seat.seat, seat.reward, len(seat.rows)) for seat in found.seats] == [
        ("x", 1.0, 1),
        ("o", -1.0, 1),
    ]
    assert found.num_trained == 4


def test_supervised_data_has_a_conversation_for_each_seat_of_the_policy(tmp_path):
    member = game("e", {"x": 1, "o": -1}, players=("policy", "league"))
    with closing(logged(tmp_path / "episodes.db", member)) as log:
        (parts,) = _recorded(log, lambda count: None, by_group=False)
        found = [part.episode_id for part, _ in parts]
    assert found == ["e.x"]


def test_people_read_the_seats_one_after_the_other():
    said = [line["content"] for line in _messages(game("e", {"x": 1, "o": -1}))]
    assert said == [
        "Seat x, played by policy: reward 1",
        "Seat o, played by policy: reward -1",
    ]


def test_a_game_is_not_verified_again_and_says_so():
    assert "several seats" in (not_replayable(game("e", {"x": 1, "o": -1})) or "")
