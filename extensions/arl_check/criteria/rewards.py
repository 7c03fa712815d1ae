"""The criteria for rewards: the maximum for the right answer, the minimum for all others."""

from __future__ import annotations

from collections.abc import Sequence

from arl_trial.pays import never_pays

from agentgym_rl.gym.tool_env import text_of
from arl_check.policies import (
    BAD_ANSWERS,
    CALL_EVERYTHING,
    ECHO,
    GUESSES,
    NO_OP,
    ORACLE,
    REPEAT,
    Policy,
)
from arl_check.report import NotJudged, Violation, criterion
from arl_check.subject import Play, Subject

TOLERANCE = 1e-9
LUCK = 0.75
"""The share of tasks on which a guess may be right."""
_HIDING = "score the final answer alone, after parsing it strictly: one value, the whole of it"
_NEEDS = ("step-tuple", "reward", "info", "replay")


async def _played(subject: Subject, *policies: Policy) -> tuple[list[Play], float, float]:
    """Return the plays of these agents, and the minimum and maximum reward of an episode."""
    names = {policy.name for policy in policies}
    plays = [p for p in await subject.plays() if p.policy.name in names and p.error is None]
    allowed = plays[0].env.reward_range if plays else None
    if not plays:
        raise NotJudged("all its episodes failed")
    if allowed is None:
        raise NotJudged("the environment has no reward_range: any play may win")
    return plays, *allowed


@criterion(
    "pays",
    "some episode can be paid",
    fix="write `finish(self, text)`, which returns the reward, or call self.end(reward) in a tool",
    needs=("step-tuple", "reward"),
)
async def pays(subject: Subject) -> None:
    paid = any(play.reward for play in await subject.plays())
    if not paid and not subject.spec.wrappers and (problem := never_pays(subject.cls)):
        raise Violation(problem)


@criterion(
    "gold",
    "the solution of solve() gets the full reward",
    fix="correct solve() or the scoring; where an episode can pay another maximum than 1.0 say so: "
    "reward_range = (least, most)",
    needs=_NEEDS,
)
async def gold(subject: Subject) -> None:
    plays, _, most = await _played(subject, ORACLE)
    known = [play for play in plays if play.gold is not None]
    if not known:
        raise NotJudged("the environment has no solve(): its tasks may be unsolvable")
    for play in known:
        if abs(play.reward - most) > TOLERANCE or not play.ended:
            end = "" if play.ended else ", and the episode continues"
            raise Violation(
                f"{play}: {play.gold} messages of solve() were paid {play.reward:g}{end}; "
                f"expected {most:g}; the last was {play.actions[-1:]!r:.200}"
            )


@criterion(
    "no-op",
    "an empty message gets no reward",
    fix="an empty answer is wrong: " + _HIDING,
    needs=_NEEDS,
)
async def no_op(subject: Subject) -> None:
    await _never_paid(subject, NO_OP)


@criterion(
    "echo",
    "repeating the question, or the last message, gets no reward",
    fix="the question must not hold its answer; " + _HIDING,
    needs=_NEEDS,
)
async def echo(subject: Subject) -> None:
    await _never_paid(subject, ECHO, REPEAT)


@criterion(
    "call-everything",
    "calling all tools with junk gets no reward",
    fix="give rewards for results, not for calls",
    needs=_NEEDS,
)
async def call_everything(subject: Subject) -> None:
    if not any(play.env.tools for play in await subject.plays()):
        raise NotJudged("the environment offers no tools")
    await _never_paid(subject, CALL_EVERYTHING)


@criterion(
    "bad-answers",
    f"{len(BAD_ANSWERS)} answers that name everything or nothing get the least reward",
    fix=_HIDING + "; no partial credit for containing it",
    needs=_NEEDS,
)
async def bad_answers(subject: Subject) -> None:
    guesses = BAD_ANSWERS[: len(GUESSES)]
    await _never_paid(subject, *BAD_ANSWERS[len(GUESSES) :])
    for policy in guesses:
        plays, least, _ = await _played(subject, policy)
        paid = _paid(plays, least)
        if len(paid) > max(2, LUCK * len(plays)):
            raise Violation(f"{policy.name} was paid on {len(paid)} of {len(plays)} tasks")


async def _never_paid(subject: Subject, *policies: Policy) -> None:
    plays, least, _ = await _played(subject, *policies)
    for play in _paid(plays, least):
        text = text_of(play.actions[-1])[:60]
        raise Violation(
            f"{play}: paid {play.reward:g}, expected {least:g} (it said {text!r}); the least an "
            "episode pays is reward_range[0]"
        )


def _paid(plays: Sequence[Play], least: float) -> list[Play]:
    return [play for play in plays if play.reward > least + TOLERANCE]
