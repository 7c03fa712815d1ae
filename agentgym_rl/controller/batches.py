"""The split of a batch into ranks and minibatches, the same for any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentgym_rl.algo import deal
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core import BatchRow, BatchShard, ConfigError, Group, Row, Trajectory
from agentgym_rl.core.group import by_env


def _nothing(env_id: str, data: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Return the numbers of an objective whose terms need none."""
    return {}


def split_batch(
    groups: Sequence[Group],
    *,
    step: int,
    num_ranks: int,
    num_minibatches: int,
    turn_discount: float = 1.0,
    leave_out: Sequence[str] = (),
    reward_parts: Iterable[str] = (),
    of_task: Callable[[str, Mapping[str, Any]], Mapping[str, Sequence[float]]] = _nothing,
) -> list[BatchShard]:
    """Return one shard per rank, without the rows of episodes that are left out (`left_out`); those
    count as episodes without a trained token, but for their rewards. `reward_parts` are the names
    of the parts of rewards; `of_task` returns the numbers that terms need for the episodes of a
    task, given its environment and its data (`AlgoConfig.of_task`).

    Groups are first dealt to minibatches, whole if their numbers allow (see `_parts`), balanced by
    tokens and independent of ranks. So minibatch j holds the same episodes over all ranks together,
    for any number of ranks. The episodes of each minibatch are then dealt to ranks (`_rank_of`);
    a rank may get none. A game is one episode for each seat of the policy, all of them in the
    group's minibatches.

    Raises:
        ConfigError: no episode has a metric that `leave_out` names, or one lacks a part.
    """
    shares = [[part for member in group.members for part in member.parts] for group in groups]
    episodes = [part for share in shares for part in share]
    group_of = [i for i, share in enumerate(shares) for _ in share]
    absent = left_out(episodes, leave_out)
    tokens = [0 if out else e.num_tokens for e, out in zip(episodes, absent, strict=True)]
    minibatch_of = [0] * len(episodes)
    parts = _parts([len(share) for share in shares], num_minibatches)
    dealt = _deal([sum(tokens[i] for i in part) for part in parts], num_minibatches)
    for part, minibatch in zip(parts, dealt, strict=True):
        for index in part:
            minibatch_of[index] = minibatch
    lengths = [e.num_trained for e in episodes]
    trained = [0 if out else count for count, out in zip(lengths, absent, strict=True)]
    rewards = [e.reward for e in episodes]
    group_ids = [groups[g].group_id for g in group_of]
    weights = [groups[g].weight for g in group_of]
    names = [f"{e.episode_id} of {e.env_id}" if e.env_id else e.episode_id for e in episodes]
    returns = [episode.credit.turn_returns(turn_discount) for episode in episodes]
    tasks = [of_task(e.env_id, groups[g].data) for e, g in zip(episodes, group_of, strict=True)]
    seats = [episode.seat for episode in episodes]
    rows = [() if out else episode.rows for episode, out in zip(episodes, absent, strict=True)]
    rank_of = _rank_of(groups, rows, list(zip(group_of, minibatch_of, strict=True)), num_ranks)
    shards: list[BatchShard] = []
    for rank in range(num_ranks):
        minibatches: list[list[BatchRow]] = [[] for _ in range(num_minibatches)]
        for index, its in enumerate(rows):
            if rank_of[index] == rank:
                minibatches[minibatch_of[index]] += [BatchRow(row, index) for row in its]
        shards.append(
            BatchShard(
                step=step,
                rewards=rewards,
                group_ids=group_ids,
                num_trained_tokens=sum(trained),
                num_episodes=sum(count > 0 for count in trained),
                minibatches=minibatches,
                weights=weights,
                of_tasks={name: [its[name] for its in tasks] for name in (tasks or [{}])[0]},
                turn_returns=returns if any(returns) else (),
                credits=[e.credit for e in episodes] if any(returns) else (),
                lengths=lengths,
                truncated=[e.outcome == "truncated" for e in episodes],
                parts={name: [_part(e, name) for e in episodes] for name in reward_parts},
                names=names,
                seats=seats if any(seats) else (),
            )
        )
    return shards


def shards_of(
    groups: Sequence[Group],
    *,
    step: int,
    algo: AlgoConfig,
    trainer: TrainerConfig,
    num_ranks: int | None = None,
) -> list[BatchShard]:
    """Return the shards of a batch, as the sections of a run split it (`split_batch`); `num_ranks`:
    by default those of the run.

    Raises:
        ConfigError: see `split_batch`.
    """
    return split_batch(
        groups,
        step=step,
        num_ranks=trainer.num_parts if num_ranks is None else num_ranks,
        num_minibatches=trainer.num_minibatches,
        turn_discount=algo.turn_discount,
        leave_out=algo.leave_out,
        reward_parts=algo.reward_parts,
        of_task=algo.of_task,
    )


def left_out(episodes: Sequence[Trajectory], names: Sequence[str]) -> list[bool]:
    """Return whether the tokens of each episode do not train: it was truncated, if that is one of
    the `names`, or one of its metrics with such a name is not 0.

    Raises:
        ConfigError: no episode of the batch has a metric of this name.
    """
    for name in names:
        if name != "truncated" and episodes and not any(name in e.metrics for e in episodes):
            known = ", ".join(sorted({name for e in episodes for name in e.metrics})) or "none"
            raise ConfigError(
                f"algo.leave_out names {name!r}, which no episode of a batch reports; expected "
                f'"truncated" or a metric that the environment reports, 0 or 1: {known}'
            )
    return [
        any(
            e.outcome == "truncated" if name == "truncated" else bool(e.metrics.get(name))
            for name in names
        )
        for e in episodes
    ]


def _part(episode: Trajectory, name: str) -> float:
    if name not in episode.metrics:
        raise ConfigError(
            f"algo.reward.parts names {name!r}, which episode {episode.episode_id} does not have; "
            f"expected metrics that every episode has; it has {sorted(episode.metrics)}"
        )
    return episode.metrics[name]


def _rank_of(
    groups: Sequence[Group],
    rows: Sequence[Sequence[Row]],
    places: Sequence[tuple[int, int]],
    num_ranks: int,
) -> list[int]:
    """Return the rank of each episode, given its rows and the numbers of its group and minibatch.

    Ranks wait for each other at every micro-batch, so each minibatch is dealt by itself (`deal`).
    Groups that tell no token from another often take no pass: their episodes are dealt apart from
    the others, and the rank that got most of one kind gets least of the other. Rows without a
    trained token are not computed. An episode stays whole: its rank knows all its tokens.
    """
    found = [0] * len(rows)
    learns = [bool(group.weight) and tells_apart(group.members) for group in groups]
    alike: dict[tuple[int, bool], list[int]] = {}
    for index, (group, minibatch) in enumerate(places):
        alike.setdefault((minibatch, learns[group]), []).append(index)
    for (_, learn), its in alike.items():
        tokens = [[row.beginning for row in rows[index] if row.num_trained] for index in its]
        parts = deal(tokens, [places[index][0] for index in its], num_ranks)
        for rank, part in enumerate(parts if learn else reversed(parts)):
            for member in part:
                found[its[member]] = rank
    return found


def taught(metrics: Mapping[str, float | None]) -> bool:
    """Return whether a batch with these metrics moved the policy: a gradient and a rate above 0."""
    return bool(metrics.get("grad_norm")) and bool(metrics.get("lr"))


def tells_apart(members: Sequence[Trajectory]) -> bool:
    """Return whether training on a group makes some of its tokens likelier than others."""
    parts = [part for member in members for part in member.parts]
    rewards = {(part.seat, part.reward) for part in parts}
    seats = {part.seat for part in parts}
    return len(rewards) > len(seats) or any(part.credit.turn_rewards for part in parts)


def why_nothing_taught(groups: Sequence[Group], metrics: Mapping[str, float | None]) -> str:
    """Return the reasons why a batch of `groups` taught nothing, with counts and remedies."""
    episodes = [member for group in groups for member in group.members]
    silent = sum(not e.num_sampled for e in episodes)
    masked = sum(e.num_sampled > 0 and not e.num_trained for e in episodes)
    of = f"of its {len(episodes)} episodes"
    reasons: list[str] = []
    if silent:
        reasons.append(
            f"{silent} {of} sampled no token: the prompt leaves no room within "
            "engine.max_model_len or the agent never asked the model; raise the one, or look at "
            "the other in `arl inspect`"
        )
    if masked:
        reasons.append(
            f"{masked} {of} sampled tokens of which none trains: all are of turns that the agent "
            "or environment left out, or that a grammar held to a form (arl docs gateway)"
        )
    level = [
        g for g in groups if any(m.num_trained for m in g.members) and not tells_apart(g.members)
    ]
    if level:
        found = [f"{reward:g}" for reward in sorted({m.reward for g in level for m in g.members})]
        values = " or ".join(found) if len(found) < 4 else f"from {found[0]} to {found[-1]}"
        reasons.append(
            f"in {len(level)} of its {len(groups)} groups every episode has the same reward "
            f"({values}): make the task easier or harder, raise rollout.group_size, or look in "
            "`arl inspect` whether the reward is right"
        )
    if weightless := sum(g.weight == 0 for g in groups):
        reasons.append(f"{weightless} of its {len(groups)} groups are of tasks that weigh 0")
    if out := metrics.get("episode/left_out"):
        reasons.append(f"algo.leave_out left out {out:.0%} of its episodes")
    if masked_share := metrics.get("policy/behavior_weight_masked"):
        reasons.append(f"algo.behavior_correction dropped {masked_share:.0%} of its tokens")
    if not metrics.get("lr"):
        reasons.append("the learning rate is 0 (trainer.learning_rate, trainer.schedule)")
    return "; ".join(reasons) or "the loss has no gradient"


def _parts(sizes: Sequence[int], num_minibatches: int) -> list[range]:
    """Return the episodes of groups of these sizes in parts that are dealt to minibatches, each
    group in as few parts as possible: so many that every minibatch gets equally many of them. Rows
    of a group share tokens, which are computed once in each minibatch."""
    each = num_minibatches // math.gcd(num_minibatches, len(sizes))
    parts: list[range] = []
    start = 0
    for size in sizes:
        ends = [start + size * number // each for number in range(each + 1)]
        parts += [range(a, b) for a, b in pairwise(ends)]
        start += size
    return parts


def _deal(sizes: Sequence[int], num_bins: int) -> list[int]:
    """Return a bin for each size: largest first, each to the emptiest bin (LPT), counts equal ±1.

    The equal counts keep minibatches alike in episodes as well as in tokens.
    """
    totals = [0] * num_bins
    chosen = [0] * len(sizes)
    open_bins: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if not open_bins:  # each has as many as the others
            open_bins = list(range(num_bins))
        bin = min(open_bins, key=totals.__getitem__)
        open_bins.remove(bin)
        totals[bin] += sizes[index]
        chosen[index] = bin
    return chosen


def batch_metrics(
    groups: Sequence[Group], version: int, dropped: Mapping[str, int]
) -> dict[str, float]:
    """Return the metrics of the rollout that produced a batch (names: docs/metrics.md).

    An environment's own metric becomes `episode/<name>`, unless a built-in metric has that name.
    """
    episodes: list[Trajectory] = [member for group in groups for member in group.members]
    ages = [g.staleness(version) for g in groups]
    whole = _episode_metrics(episodes)
    found = whole | {
        "reward/equal_groups": _mean([not tells_apart(group.members) for group in groups]),
        "staleness/mean": _mean(ages),
        "staleness/max": float(max(ages)),
        "staleness/dropped": float(dropped.get("stale", 0)),
        "versions_per_episode": _mean([len(e.trained_versions) for e in episodes]),
    }
    for env_id, its in by_env(episodes).items():
        found[f"env/{env_id}/episodes"] = float(len(its))
        of = whole if len(its) == len(episodes) else _episode_metrics(its)
        found |= {f"env/{env_id}/{name}": value for name, value in of.items()}
    return found


def _episode_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the `reward/…` and `episode/…` metrics of one or more episodes."""
    rewards = [e.reward for e in episodes]
    mean = sum(rewards) / len(rewards)
    variance = sum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1)
    found = {
        "reward/mean": mean,
        "reward/std": variance**0.5,
        "episode/turns": _mean([e.num_turns for e in episodes]),
        "episode/tokens": _mean([e.num_tokens for e in episodes]),
        "episode/rows": _mean([len(e.rows) for e in episodes]),
        "episode/truncated": _mean([e.outcome == "truncated" for e in episodes]),
    }
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            values.setdefault(name, []).append(value)
    for name in sorted(values):
        found.setdefault(f"episode/{name}", _mean(values[name]))
    return found


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0
