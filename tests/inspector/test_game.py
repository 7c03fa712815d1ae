"""The moves of a game in the order of time, from the records of its seats."""

from dataclasses import replace

import numpy as np
from arl_inspect.game import moves_of, seats_of
from made_runs import make_episode, make_row


def seat(name: str, replies: list[str], times: list[float], *, first: int):
    """The record of a seat whose replies began at these times, in turns from number `first` on."""
    rows = [
        replace(make_row(start_s=at), turn_ids=np.where(make_row().turn_ids < 0, -1, first + k))
        for k, at in enumerate(times)
    ]
    messages = [
        message
        for k, reply in enumerate(replies)
        for message in (
            {"role": "user", "content": f"board {k} of {name}"},
            {"role": "assistant", "content": reply},
        )
    ]
    made = {"seat": name, "player": "policy", "rows": rows, "messages": messages}
    return make_episode("e", "g", **made, num_turns=len(replies))


def told(moves) -> list[str]:
    return [move["messages"][-1]["content"] for move in moves]


def test_moves_are_in_the_order_of_time():
    x, o = seat("x", ["1", "2"], [100.0, 300.0], first=0), seat("o", ["5"], [200.0], first=2)
    game = make_episode("e", "g", seats=[o, x])
    moves = moves_of(game)
    assert told(moves) == ["1", "5", "2"]
    assert [move["seat"] for move in moves] == [1, 0, 1]
    assert [len(move["messages"]) for move in moves] == [2, 2, 2]
    assert [seat["seat"] for seat in seats_of(game)] == ["o", "x"]


def test_without_times_the_seats_reply_in_turns():
    x, o = seat("x", ["1", "2"], [100.0, 300.0], first=0), seat("o", ["5", "6"], [], first=2)
    moves = moves_of(make_episode("e", "g", seats=[x, o]))
    assert told(moves) == ["1", "5", "2", "6"]
    assert {move["time_s"] for move in moves} == {None}


def test_what_a_seat_sees_last_is_at_the_end():
    x = seat("x", ["1"], [100.0], first=0)
    x = replace(x, messages=[*x.messages, {"role": "user", "content": "you won"}])
    o = seat("o", ["5"], [200.0], first=1)
    assert told(moves_of(make_episode("e", "g", seats=[x, o]))) == ["1", "5", "you won"]


def test_an_ordinary_episode_is_no_game():
    episode = make_episode("e", "g")
    assert (moves_of(episode), seats_of(episode)) == ([], [])
