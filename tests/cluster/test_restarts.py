"""The lives of supervised members, which are fake, and the judgement of silence."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from agentgym_rl.cluster import Silence, Supervisor
from agentgym_rl.core import ProcessDied


@dataclass
class Life:
    """A member whose lives end in these ways: None is a good end, "!" prevents a start."""

    name: str
    ends: list[str | None]
    restarts: int = 0
    said: list[str] = field(default_factory=list)


class Lives(Supervisor[Life]):
    def __init__(self, *members: Life, max_restarts: int) -> None:
        super().__init__("toy", max_restarts=max_restarts, key="toys.max_restarts")
        self.members = members
        self.left.update(member.name for member in members)

    async def run(self) -> None:
        async with self._supervising(self.members):
            pass

    async def _lost(self, member: Life) -> Exception | None:
        await asyncio.sleep(0)
        end = member.ends.pop(0)
        return None if end is None else ProcessDied(end)

    async def _may_restart(self, member: Life, lost: Exception) -> bool:
        member.said.append(str(lost))
        return str(lost) != "retired"

    async def _start_again(self, member: Life) -> Exception | None:
        return ProcessDied(member.ends.pop(0) or "") if "!" in (member.ends[0] or "") else None


def test_a_member_lives_again_until_it_ends_well_or_is_retired():
    good, bad = Life("a", ["x", "y", None]), Life("b", ["x", "retired", "z"])
    asyncio.run(Lives(good, bad, max_restarts=2).run())
    assert (good.restarts, good.said) == (2, ["x", "y"])
    assert (bad.restarts, bad.said) == (1, ["x", "retired"])


def test_a_start_that_fails_costs_a_restart_too(caplog):
    lost, other = Life("a", ["x", "no room!", "y"]), Life("b", [None])
    asyncio.run(Lives(lost, other, max_restarts=2).run())
    assert (lost.restarts, lost.said) == (2, ["x", "no room!", "y"])
    assert "a is given up after 2 restarts (toys.max_restarts)" in caplog.text


def test_the_last_one_to_be_given_up_ends_all():
    lives = Lives(Life("a", ["x"]), Life("b", ["y", "z"]), max_restarts=1)
    lives.members[0].ends.append("x!")
    with pytest.raises(ProcessDied, match=r"no toy is left after 1 restarts each .*; the last: "):
        asyncio.run(lives.run())


def test_restarts_count_anew_after_a_member_did_well(monkeypatch):
    lost = Life("a", ["x", "y", "z", None])
    lives = Lives(lost, max_restarts=1)
    monkeypatch.setattr(lives, "_has_recovered", lambda member, lived_s: member.said[-1] != "x")
    asyncio.run(lives.run())
    assert (lost.restarts, lost.said) == (3, ["x", "y", "z"])
    lives = Lives(Life("b", ["x"]), max_restarts=1)
    assert not lives._has_recovered(lives.members[0], 3599)
    assert Supervisor._has_recovered(lives, lives.members[0], 3600)


def test_time_in_which_nobody_listened_is_no_silence(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    silence = Silence(most_s=2.0)
    now[0] += 1.5
    assert silence.look(alive=False) == 1.5
    now[0] += 600.0
    assert silence.look(alive=False) == 3.5
    assert silence.look(alive=True) == 0.0
