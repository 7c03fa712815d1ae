"""Models that play each other at a game of two seats (`arl eval --round-robin`): each pair plays
every held-out task twice, once at each seat, and the results rate them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import permutations
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgym_rl.core import ConfigError, EpisodeError, Task, Trajectory
from agentgym_rl.evaluate import EvalTarget, Matches, serving_all
from agentgym_rl.evaluate.evaluate import evaluate
from agentgym_rl.report import Progress
from agentgym_rl.rollout import Player, env_spec, specimen

from .game import match_of, seats_of
from .ratings import Won, ratings


async def round_robin(targets: Sequence[EvalTarget], progress: Progress) -> dict[str, Any]:
    """Let the models play each other; return ratings and results, the JSON object of
    `arl eval --round-robin`.

    Raises:
        ConfigError: some configuration cannot work, or the game does not have two seats.
    """
    config = targets[0].config
    spec = env_spec(config.env, config.rollout)
    game = await specimen(spec)
    seats = seats_of(game)
    if len(seats) != 2:
        raise ConfigError(f"--round-robin: {config.env.id} is no game of two seats")
    won, pairs = list[Won](), list[dict[str, Any]]()
    async with serving_all(targets, progress) as (checked, players):
        names = [each.model for each in checked]
        for one, other in permutations(range(len(players)), 2):
            progress.phase(f"{names[one]} against {names[other]}")
            match = match_of(seats, [players[one], players[other]])
            points = await _match(checked[one], match, progress)
            won += [{(one, other): value, (other, one): 1 - value} for value in points]
            results = {name: points.count(value) for value, name in _RESULTS.items()}
            pairs.append({"first": names[one], "second": names[other], **results})
    each = len(won) // len(pairs)
    tasks = [_sum(won[index::each]) for index in range(each)]
    rated = ratings(tasks, len(names), seed=config.seed)
    return {"seats": list(seats), "tasks": len(tasks), "pairs": pairs} | {
        "models": [{"model": name, **asdict(it)} for name, it in zip(names, rated, strict=True)]
    }


_RESULTS = {1.0: "won", 0.5: "drawn", 0.0: "lost"}
"""The results of a game by the points of its first seat."""


def _sum(parts: Sequence[Won]) -> Won:
    total: Counter[tuple[int, int]] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


async def _match(target: EvalTarget, player: Player, progress: Progress) -> list[float]:
    """Play every held-out task; return the points of the first seat, in the order of tasks.

    Raises:
        InfraError, TooManyErrors: see `evaluate`.
        EpisodeError: a game failed, so that the players have not played the same tasks.
    """
    config, points = target.config, dict[int, float]()

    async def keep(task: Task, index: int, played: Trajectory) -> None:
        if not played.outcome.trains:
            raise EpisodeError(f"game {played.episode_id}: {played.outcome}: {played.error}")
        first, second = (seat.reward for seat in played.seats)
        points[index] = 0.5 if first == second else float(first > second)

    spec = env_spec(config.env, config.rollout)
    tasks = await spec.read_tasks(config.eval.split, seed=config.eval.seed)
    games = config.eval.model_copy(update={"samples_per_task": 1, "pass_at": ()})
    seed, shown = config.seed, progress.evaluating
    await evaluate(games, config.rollout, player, tasks, seed=seed, on_progress=shown, keep=keep)
    return [points[index] for index in sorted(points)]


def print_ratings(result: Mapping[str, Any]) -> None:
    """Print the ratings and results of `round_robin` on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=160)
    table = Table(box=None, pad_edge=False, caption="(95 % intervals); Elo relative to the first")
    table.add_column("model", overflow="fold")
    for name in ("Elo", *(f"as {seat}: won/drawn/lost" for seat in result["seats"])):
        table.add_column(name, justify="right")
    for one in result["models"]:
        ci = one["ci"]
        rated = f"{one['elo']:+.0f}{f' ({ci[0]:+.0f} to {ci[1]:+.0f})' if ci else ''}"
        first, second = (
            _added(pair for pair in result["pairs"] if pair[at] == one["model"])
            for at in ("first", "second")
        )
        table.add_row(
            escape(one["model"]),
            rated,
            f"{first['won']}/{first['drawn']}/{first['lost']}",
            f"{second['lost']}/{second['drawn']}/{second['won']}",
        )
    console.print(table)


def _added(pairs: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the sums of the results of several pairs, for their first players."""
    found: Counter[str] = Counter()
    for pair in pairs:
        found.update({name: pair[name] for name in ("won", "drawn", "lost")})
    return found


class _RoundRobin(Matches):
    async def play(self, targets: Sequence[EvalTarget], progress: Progress) -> dict[str, Any]:
        return await round_robin(targets, progress)

    def show(self, result: Mapping[str, Any]) -> None:
        print_ratings(result)


MATCHES = _RoundRobin()
