"""The split of a batch into ranks and minibatches."""

from dataclasses import replace

import numpy as np
import pytest

from agentgym_rl.algo import num_distinct
from agentgym_rl.config import AlgoConfig
from agentgym_rl.controller import batch_metrics, split_batch
from agentgym_rl.controller.batches import taught, why_nothing_taught
from agentgym_rl.core import BatchShard, ConfigError, Group, Outcome
from tests.kit.cases import cases


def episodes_of(shards: list[BatchShard], minibatch: int) -> list[int]:
    return sorted(item.episode for shard in shards for item in shard.minibatches[minibatch])


def test_minibatches_do_not_depend_on_the_number_of_ranks(group):
    groups = [group(f"g{i}", [0] * (i + 1), size=4) for i in range(8)]
    one = split_batch(groups, step=0, num_ranks=1, num_minibatches=4)
    three = split_batch(groups, step=0, num_ranks=3, num_minibatches=4)
    for minibatch in range(4):
        assert episodes_of(one, minibatch) == episodes_of(three, minibatch)


def test_an_episode_is_whole_on_its_rank_and_in_its_minibatch(group):
    groups = [group(f"g{i}", [0] * 9, size=4) for i in range(6)]
    groups = [
        replace(
            it, members=[replace(m, rows=[*m.rows] * (1 + n)) for n, m in enumerate(it.members)]
        )
        for it in groups
    ]
    shards = split_batch(groups, step=0, num_ranks=3, num_minibatches=2)
    found = [[item.episode for item in part] for s in shards for part in s.minibatches]
    assert {e: its.count(e) for its in found for e in its} == {e: 1 + e % 4 for e in range(24)}
    assert sum(len(set(its)) for its in found) == 24


def test_rows_without_a_trained_token_do_not_count(group):
    """They are not computed, however long they are: each rank has three rows that are."""
    groups = [group(f"g{i}", [0] * 9, size=6) for i in range(2)]
    silent, taught = groups[0].members, groups[1].members
    mute = [replace(r, loss_mask=np.zeros(len(r), bool)) for m in silent for r in m.rows]
    silent = [replace(m, rows=[r] * 20) for m, r in zip(silent, mute, strict=True)]
    both = [replace(groups[0], members=silent), replace(groups[1], members=taught)]
    shards = split_batch(both, step=0, num_ranks=2, num_minibatches=1)
    assert [sum(i.row.num_trained > 0 for i in s.minibatches[0]) for s in shards] == [3, 3]


def test_episodes_that_take_no_pass_are_dealt_apart(group):
    """Half of the groups have equal rewards. Each rank gets as many tokens of either kind."""
    groups = [own_tokens(group(f"g{i}", [0] * 40, reward=i % 2), shared=0) for i in range(8)]
    shards = split_batch(groups, step=0, num_ranks=4, num_minibatches=2)
    for number in range(2):
        for kind in (0, 1):
            counts = [
                sum(int(s.group_ids[i.episode][1:]) % 2 == kind for i in s.minibatches[number])
                for s in shards
            ]
            assert len(set(counts)) == 1


def test_every_row_is_in_exactly_one_place(group):
    groups = [group(f"g{i}", [0, 0], size=3) for i in range(5)]
    shards = split_batch(groups, step=0, num_ranks=2, num_minibatches=4)
    found = [item.episode for s in shards for m in s.minibatches for item in m]
    assert sorted(found) == list(range(15))


@cases("count, whole", [(8, True), (4, True), (12, True), (2, False), (6, False), (5, False)])
def test_groups_stay_whole_in_minibatches_if_each_gets_as_many(group, count, whole):
    groups = [group(f"g{i}", [0], size=8) for i in range(count)]
    (shard,) = split_batch(groups, step=0, num_ranks=1, num_minibatches=4)
    found = [[item.episode // 8 for item in part] for part in shard.minibatches]
    assert {len(part) for part in found} == {count * 2}
    places = {number: sum(number in part for part in found) for number in range(count)}
    assert set(places.values()) == {1} if whole else max(places.values()) <= 4


def test_every_episode_has_the_weights_of_its_teachers(group):
    models = [{"model": "a"}, {"model": "b", "weight": 3, "only": {"env_id": "x", "level": 2}}]
    algo = AlgoConfig.model_validate({"teacher": {"models": models}})
    groups = [group(f"g{i}", [0], size=1) for i in range(3)]
    groups = [replace(it, data={"level": 1 + number % 2}) for number, it in enumerate(groups)]
    members = [replace(it.members[0], env_id="xxy"[n]) for n, it in enumerate(groups)]
    groups = [replace(it, members=[of]) for it, of in zip(groups, members, strict=True)]
    (shard,) = split_batch(groups, step=0, num_ranks=1, num_minibatches=1, of_task=algo.of_task)
    assert shard.of_tasks == {"teacher": [[1, 0], [1, 3], [1, 0]]}
    assert BatchShard.unpack(shard.pack()).of_tasks == shard.of_tasks
    (plain,) = split_batch(groups, step=0, num_ranks=1, num_minibatches=1)
    assert not plain.of_tasks


def test_minibatches_are_balanced_by_tokens(group):
    groups = [group(f"g{i}", [0] * (5 + 3 * i), size=8) for i in range(8)]
    (shard,) = split_batch(groups, step=0, num_ranks=1, num_minibatches=4)
    sizes = [sum(len(item.row) for item in m) for m in shard.minibatches]
    assert max(sizes) <= 1.02 * min(sizes)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("alike", [False, True], ids=["own tokens", "shared tokens"])
def test_ranks_are_balanced_by_tokens_computed_in_each_minibatch(group, num_ranks, alike):
    lengths = [23, 5, 61, 14, 38, 9, 47, 30, 52, 17, 26, 11, 33, 71, 19, 44]
    groups = [group(f"g{i}", [0] * length, size=8) for i, length in enumerate(lengths)]
    groups = [own_tokens(it, shared=alike * 9 * (number % 2)) for number, it in enumerate(groups)]
    shards = split_batch(groups, step=0, num_ranks=num_ranks, num_minibatches=4)
    held = [
        [num_distinct([i.row.tokens for i in part]) for part in shard.minibatches]
        for shard in shards
    ]
    fullest = sum(map(max, zip(*held, strict=True)))
    assert sum(map(sum, held)) / num_ranks >= 0.95 * fullest


def own_tokens(group: Group, *, shared: int) -> Group:
    """The group with other tokens in each row, except of the first `shared` rows, which are
    equal."""
    members = [
        replace(
            episode,
            rows=[replace(r, tokens=own[: len(r)]) for r in episode.rows],
        )
        for episode, own in zip(
            group.members,
            [RNG.integers(0, 1000, 200, np.int32)] * shared
            + [RNG.integers(0, 1000, 200, np.int32) for _ in group.members],
            strict=False,
        )
    ]
    return replace(group, members=members)


RNG = np.random.default_rng(0)


def test_a_long_episode_is_alone_and_the_others_are_spread(group):
    members = own_tokens(group("g", [0] * 15, size=7), shared=0).members
    long = own_tokens(group("long", [0] * 120, size=1), shared=0).members
    both = Group("g", "task", [*long, *members])
    shards = split_batch([both], step=0, num_ranks=4, num_minibatches=1)
    assert sorted(len(s.minibatches[0]) for s in shards) == [1, 2, 2, 3]


def test_a_rank_without_an_episode_still_has_its_minibatches(group):
    shards = split_batch([group("only", [0])], step=0, num_ranks=2, num_minibatches=2)
    assert [len(shard.minibatches) for shard in shards] == [2, 2]
    assert sum(len(m) for shard in shards for m in shard.minibatches) == 2


def test_counts_are_those_of_the_whole_batch(group):
    groups = [group("a", [0, 0]), group("b", [])]
    for shard in split_batch(groups, step=7, num_ranks=2, num_minibatches=1):
        assert (shard.num_trained_tokens, shard.num_episodes) == (4, 2)
        assert len(shard.rewards) == 4


def marked(group: Group, **metrics: float) -> Group:
    """The group, with metrics for its first episode, and its last one truncated."""
    first, *others, last = group.members
    first = replace(first, metrics=metrics)
    return replace(group, members=[first, *others, replace(last, outcome=Outcome.TRUNCATED)])


def test_episodes_that_are_left_out_have_rewards_and_nothing_else(group):
    groups = [marked(group(f"g{i}", [0, 0], size=3), cheated=i) for i in range(2)]
    split = {"step": 0, "num_ranks": 1, "num_minibatches": 1}
    (whole,) = split_batch(groups, **split)
    for names, absent in ((["truncated"], {2, 5}), (["truncated", "cheated"], {2, 3, 5})):
        (shard,) = split_batch(groups, **split, leave_out=names)
        assert {it.episode for it in shard.minibatches[0]} == set(range(6)) - absent
        assert shard.num_episodes == 6 - len(absent)
        assert shard.num_trained_tokens == sum(whole.lengths[i] for i in {*range(6)} - absent)
        assert (shard.rewards, shard.lengths) == (whole.rewards, whole.lengths)
    assert whole.truncated == [False, False, True] * 2


def test_a_flag_that_nobody_reports_is_refused(group):
    groups, split = [marked(group("g", [0]), cheated=0)], {"step": 0, "num_ranks": 1}
    with pytest.raises(ConfigError, match=r"'chaeted', which no episode .*: cheated"):
        split_batch(groups, **split, num_minibatches=1, leave_out=["chaeted"])
    split_batch([group("g", [0])], **split, num_minibatches=1, leave_out=["truncated"])


def test_parts_of_rewards_are_metrics_that_every_episode_has(group):
    whole = group("g", [0], size=2)
    members = [replace(m, metrics={"right": i}) for i, m in enumerate(whole.members)]
    split = {"step": 0, "num_ranks": 1, "num_minibatches": 1}
    (shard,) = split_batch([replace(whole, members=members)], **split, reward_parts=["right"])
    assert shard.parts == {"right": [0, 1]}
    assert BatchShard.unpack(shard.pack()).parts == shard.parts
    with pytest.raises(ConfigError, match=r"'right', which episode .* does not have"):
        split_batch([whole], **split, reward_parts=["right"])


def test_batch_metrics_of_a_known_batch(group):
    found = batch_metrics([group("a", [1, 2]), group("b", [3])], 3, {"stale": 5})
    assert found["reward/mean"] == 0.5
    assert (found["staleness/mean"], found["staleness/max"]) == (1.0, 2.0)
    assert found["versions_per_episode"] == 1.5
    assert found["staleness/dropped"] == 5


def test_episode_metrics_of_a_known_batch(group):
    first, second, *others = group("a", [0], size=4, reward=3.0).members  # rewards 0, 3, 0, 3
    long = replace(second, outcome=Outcome.TRUNCATED, num_turns=4, rows=second.rows * 2)
    found = batch_metrics([Group("a", "task-a", [first, long, *others])], 0, {})
    assert (found["reward/mean"], found["reward/std"]) == (1.5, pytest.approx(3**0.5))
    assert (found["episode/turns"], found["episode/truncated"]) == (7 / 4, 1 / 4)
    assert (found["episode/tokens"], found["episode/rows"]) == (20 / 4, 5 / 4)
    alone = batch_metrics([Group("a", "task-a", [second])], 0, {})
    assert (alone["reward/mean"], alone["reward/std"]) == (3.0, 0.0)


def test_metrics_of_the_environment_are_averaged_over_those_that_have_them(group):
    found = batch_metrics([measured(group("a", [0]), {"moves": 3.0}), group("b", [0])], 0, {})
    assert found["episode/moves"] == 3.0


@pytest.mark.parametrize("name", ["turns", "tokens", "rows", "truncated"])
def test_an_environment_cannot_overwrite_our_metrics(group, name):
    plain = batch_metrics([group("a", [0])], 0, {})
    assert batch_metrics([measured(group("a", [0]), {name: 777.0})], 0, {}) == plain


def measured(group: Group, metrics: dict[str, float]) -> Group:
    """The same group, its environment having reported `metrics`."""
    return replace(group, members=[replace(member, metrics=metrics) for member in group.members])


def played(group: Group, env_id: str) -> Group:
    """The same group, played by `env_id`."""
    return replace(group, members=[replace(member, env_id=env_id) for member in group.members])


def test_every_environment_of_a_batch_has_its_own_numbers(group):
    won = played(measured(group("a", [0], reward=2.0), {"moves": 3.0}), "chess")
    lost = played(measured(group("b", [0], size=4), {"moves": 7.0}), "hub/go:9x9")
    found = batch_metrics([won, lost], 0, {})
    assert (found["env/chess/reward/mean"], found["env/hub/go:9x9/reward/mean"]) == (1.0, 0.5)
    assert (found["env/chess/episodes"], found["env/hub/go:9x9/episodes"]) == (2, 4)
    assert (found["env/chess/episode/moves"], found["episode/moves"]) == (3.0, 34 / 6)


def test_one_environment_has_the_numbers_of_the_batch(group):
    found = batch_metrics([played(group("a", [0]), "chess")], 0, {})
    for name in ("reward/mean", "reward/std", "episode/turns", "episode/tokens"):
        assert found[f"env/chess/{name}"] == found[name]


def test_a_batch_that_taught_nothing_says_why_with_counts(group):
    def masked(it: Group) -> Group:
        rows = [replace(r, loss_mask=np.zeros(len(r), bool)) for r in it.members[0].rows]
        return replace(it, members=[replace(m, rows=rows) for m in it.members])

    same, mixed = group("a", [0], reward=0), group("b", [0])
    silent = replace(same, members=[replace(m, rows=[]) for m in same.members])
    metrics = {"grad_norm": 0.0, "lr": 1e-3}
    cases = {
        "in 2 of its 2 groups every episode has the same reward (0)": [same, same],
        "2 of its 4 episodes sampled tokens of which none trains": [masked(mixed), same],
        "4 of its 4 episodes sampled no token": [silent, silent],
        "1 of its 2 groups are of tasks that weigh 0": [replace(mixed, weight=0.0), mixed],
        "the loss has no gradient": [mixed, mixed],
    }
    said = {why: why_nothing_taught(groups, metrics) for why, groups in cases.items()}
    assert [why for why, text in said.items() if why not in text] == []
    assert "same reward" not in said["4 of its 4 episodes sampled no token"]
    still = why_nothing_taught([mixed], {"grad_norm": 1.0, "lr": 0.0})
    assert still == "the learning rate is 0 (trainer.learning_rate, trainer.schedule)"
    dropped = why_nothing_taught([mixed], metrics | {"policy/behavior_weight_masked": 1.0})
    assert "dropped 100% of its tokens" in dropped


def test_a_batch_teaches_with_a_gradient_and_a_rate():
    assert taught({"grad_norm": 0.1, "lr": 1e-3})
    for less in ({"grad_norm": 0.0}, {"lr": 0.0}, {"grad_norm": None}):
        assert not taught({"grad_norm": 0.1, "lr": 1e-3} | less), less
