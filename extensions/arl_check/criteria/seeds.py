"""The criteria for reproducibility: the same seed again, in another instance or process."""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Generator
from typing import Any

from arl_check.elsewhere import SEEDS, first_messages
from arl_check.policies import BAD_ANSWERS, CALL_EVERYTHING, ORACLE
from arl_check.report import NotJudged, Violation, criterion
from arl_check.subject import Play, Subject
from arl_check.support import task_text

from .tasks import is_one_game


@criterion(
    "global-rng",
    "neither draws from nor seeds the random numbers of the process (random, numpy.random)",
    fix="use `random.Random(seed)` or `numpy.random.default_rng(seed)` of your own",
    needs=("reset-tuple",),
)
async def global_rng(subject: Subject) -> None:
    with _own_global_state():
        texts: list[str] = []
        for seed in (1, 1, 2):
            _seed_globally(seed)
            before = _global_state()
            texts.append(await _transcripts(subject))
            if changed := [
                name for name, state in _global_state().items() if before[name] != state
            ]:
                raise Violation(f"the state of {', '.join(changed)} changes as it is played")
    if texts[0] == texts[1] != texts[2]:
        raise Violation("its messages or rewards depend on random.seed(…)")


async def _transcripts(subject: Subject) -> str:
    return "".join(
        [
            (await subject.played(task, policy)).transcript()
            for task in subject.tasks(2)
            for policy in (ORACLE, CALL_EVERYTHING, BAD_ANSWERS[0])
        ]
    )


def _seed_globally(seed: int) -> None:
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _global_state() -> dict[str, bytes]:
    found = {"random": pickle.dumps(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        found["numpy.random"] = pickle.dumps(numpy.random.get_state())
    return found


@contextlib.contextmanager
def _own_global_state() -> Generator[None]:
    """Restore the process's random number generators at exit."""
    numpy: Any = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])


@criterion(
    "seed-determinism",
    "the same seed or task opens with the same bytes, in two instances and in two processes",
    fix="draw from a generator made of the seed; no time, uuid, os.urandom, hash() of a text, or "
    "order of a set",
    needs=("first-messages", "global-rng"),
)
async def seed_determinism(subject: Subject) -> None:
    elsewhere = await subject.elsewhere()
    for seed in SEEDS:
        one, two = [await _opening(subject, seed) for _ in range(2)]
        _compare(f"seed {seed}", one, two, elsewhere.by_seed.get(str(seed)))
    theirs = dict(zip(elsewhere.tasks.get("train", ()), elsewhere.by_task, strict=False))
    for task in subject.tasks(subject.episodes):
        one, two = [await _opening(subject, task.seed, task=task) for _ in range(2)]
        _compare(f"task {task.id}", one, two, theirs.get(task_text(task)))


async def _opening(subject: Subject, seed: int, task: Any = None) -> str:
    return await first_messages(subject.spec, subject.given, subject.closing, seed=seed, task=task)


def _compare(what: str, one: str, two: str, there: str | None) -> None:
    if one != two:
        raise Violation(f"{what} opens with {one:.200}, and with {two:.200} in another instance")
    if there is not None and there != one:
        raise Violation(f"{what} opens with {one:.200}, and with {there:.200} in another process")


@criterion(
    "seeds-differ",
    "different tasks are different episodes",
    fix="let the task (or the seed, where there is none) decide what is asked; a game that is "
    "always the same: a task_source of length 1",
    needs=("seed-determinism",),
)
async def seeds_differ(subject: Subject) -> None:
    tasks = subject.tasks(subject.episodes)
    if is_one_game(subject) or len(tasks) == 1:
        raise NotJudged("there is one task only")
    openings = {await _opening(subject, task.seed, task=task) for task in tasks}
    if len(openings) > 1:
        return
    plays = [play for play in await subject.plays() if play.first]
    seen: dict[str, set[str]] = {}
    for play in plays:
        seen.setdefault(play.policy.name, set()).add(play.transcript())
    if all(len(texts) == 1 for texts in seen.values()):
        raise Violation(
            f"{len(tasks)} tasks open with the same {next(iter(openings)):.200} and go on the same"
        )


@criterion(
    "replay",
    "the same task and the same actions give the same episode",
    fix="draw what a step needs from the task's generator as well; leave times, addresses and "
    "temporary paths out of messages",
    needs=("step-tuple", "seed-determinism"),
)
async def replay(subject: Subject) -> None:
    for play in await subject.plays():
        if play.policy.name.startswith("malformed"):
            continue
        again = await subject.played(play.task, play.policy)
        if again.transcript() != play.transcript():
            raise Violation(f"{play}: {difference(play.transcript(), again.transcript())}")


def difference(one: str, two: str) -> str:
    """Show the first place where two texts differ."""
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
    start = max(0, at - 60)
    return f"…{one[start : at + 60]}… then …{two[start : at + 60]}…"


@criterion(
    "reset-again",
    "reset of a used instance, after the end or in the middle, begins an episode like any other",
    fix="set all state of an episode in reset, not in __init__",
    needs=("replay",),
)
async def reset_again(subject: Subject) -> None:
    env, spy = subject.make()
    by_key = {(p.task.id, p.policy.name): p for p in await subject.plays()}
    try:
        for task in subject.tasks(2):
            for policy in (CALL_EVERYTHING, BAD_ANSWERS[0], ORACLE):
                await Play(env, spy, task, policy, subject.given).run(max_turns=1)
                again = await Play(env, spy, task, policy, subject.given).run()
                first = by_key.get((task.id, policy.name)) or await subject.played(task, policy)
                if again.transcript() != first.transcript():
                    what = difference(first.transcript(), again.transcript())
                    raise Violation(f"{again}, in a used instance: {what}")
    finally:
        await subject.closing.close(env)
