"""Records on the wire: what is packed comes back; bytes that are not ours are a ValueError."""

import pickle
import tracemalloc
import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.core import (
    NOT_SAMPLED,
    BatchRow,
    BatchShard,
    Credit,
    Outcome,
    Row,
    SeededTasks,
    StepReport,
    TaskSource,
    Trajectory,
    added_reward,
    token_records,
)
from agentgym_rl.core.credit import MAX_REWARD
from agentgym_rl.core.row import pack_row, unpack_row
from agentgym_rl.core.trajectory import forks_json
from tests.kit.cases import cases

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False)
_OTHERS = ("lineage", "parent", "choices", "experts", "teacher", "_")
ARRAYS = tuple(name for name in Row.__slots__ if not name.startswith(_OTHERS))


@st.composite
def rows(draw):
    length = draw(st.integers(0, 9))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    sampled = seed.random(length) < 0.5
    sets = tuple(token_records.packed_set(seed.bytes(5)) for _ in range(draw(st.integers(0, 3))))
    index = seed.integers(token_records.FORCED, max(len(sets), 1) if sets else 0, length)
    return Row(
        tokens=seed.integers(0, 2**31, length, dtype=np.int32),
        loss_mask=sampled,
        behavior_logprobs=-seed.random(length, dtype=np.float32),
        policy_versions=np.where(sampled, seed.integers(0, 9, length), -1).astype(np.int32),
        admitted_versions=np.where(sampled, seed.integers(0, 9, length), -1).astype(np.int32),
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=seed.random(length),
        lineage=draw(st.integers(0, 3)),
        parent=draw(st.integers(-1, 3)),
        choices=token_records.Choices(index.astype(np.int32), sets)
        if draw(st.booleans())
        else None,
        experts=some_experts(length, seed) if draw(st.booleans()) else None,
        teacher_logprobs=some_told(length, seed) if draw(st.booleans()) else None,
    )


def some_told(length: int, seed: np.random.Generator) -> token_records.TeacherLogprobs:
    return token_records.TeacherLogprobs(-seed.random((length, 2), dtype=np.float32))


def some_experts(length: int, seed: np.random.Generator) -> token_records.Experts:
    """Of a model with few experts or many, unknown for some tokens."""
    most = int(seed.choice([2, 255, 256, 5000]))
    ids = seed.integers(0, most, (length, 3, 2)).astype(np.int16)
    ids[seed.random(length) < 0.3] = token_records.UNKNOWN_EXPERT
    return token_records.Experts(ids)


CREDITS = st.builds(
    Credit,
    episode_reward=NUMBERS,
    parents=st.lists(st.integers(-1, 9), max_size=3),
    lineages=st.lists(st.integers(0, 3), max_size=3),
    turn_rewards=st.lists(NUMBERS, max_size=3),
    lineage_rewards=st.lists(NUMBERS, max_size=3),
)

TRAJECTORIES = st.builds(
    Trajectory,
    episode_id=TEXT,
    group_id=TEXT,
    task_id=TEXT,
    outcome=st.sampled_from(Outcome),
    reward=NUMBERS,
    rows=st.lists(rows(), max_size=3),
    num_turns=st.integers(0, 99),
    metrics=st.dictionaries(TEXT, NUMBERS, max_size=3),
    messages=st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3),
    error=TEXT,
    verdict=TEXT,
    reward_parts=st.dictionaries(TEXT, NUMBERS, max_size=3),
    credit=CREDITS,
)

SHARDS = st.builds(
    BatchShard,
    step=st.integers(0, 2**40),
    rewards=st.lists(NUMBERS, max_size=4),
    group_ids=st.lists(TEXT, max_size=4),
    num_trained_tokens=st.integers(0, 2**40),
    num_episodes=st.integers(0, 2**20),
    minibatches=st.lists(
        st.lists(st.builds(BatchRow, row=rows(), episode=st.integers(0, 99)), max_size=2),
        max_size=3,
    ),
    turn_returns=st.lists(st.lists(NUMBERS, max_size=3), max_size=3),
)

INTERVALS = st.lists(st.tuples(TEXT, NUMBERS, NUMBERS), max_size=3)
REPORTS = st.builds(
    StepReport,
    step=st.integers(0, 2**40),
    version=st.integers(0, 2**40),
    metrics=st.dictionaries(TEXT, NUMBERS, max_size=4),
    intervals=INTERVALS,
    others=st.dictionaries(TEXT, INTERVALS, max_size=2),
    group_ids=st.lists(TEXT, max_size=3),
    parameters=TEXT,
)


def plain(record):
    """Nested tuples, lists and numbers: what `==` can compare, dtypes included."""
    if isinstance(record, np.ndarray):
        return record.dtype.str, record.tolist()
    parts = (
        token_records.Choices
        | token_records.Experts
        | token_records.TeacherLogprobs
        | Credit
        | Row
        | BatchRow
    )
    if isinstance(record, parts | BatchShard | StepReport | Trajectory):
        names = [name for name in record.__slots__ if not name.startswith("_")]
        return {name: plain(getattr(record, name)) for name in names}
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items()}
    return [plain(item) for item in record] if isinstance(record, list | tuple) else record


@given(rows())
def test_a_row_comes_back(row):
    assert plain(unpack_row(pack_row(row))) == plain(row)


@given(TRAJECTORIES)
def test_a_trajectory_comes_back(trajectory):
    assert plain(Trajectory.unpack(trajectory.pack())) == plain(trajectory)


@given(SHARDS)
def test_a_shard_comes_back(shard):
    assert plain(BatchShard.unpack(shard.pack())) == plain(shard)


@given(REPORTS)
def test_a_report_comes_back(report):
    assert plain(StepReport.unpack(report.pack())) == plain(report)


@given(TRAJECTORIES | SHARDS | REPORTS, st.data())
def test_truncated_bytes_are_a_value_error(record, data):
    packed = record.pack()
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match="bytes"):
        type(record).unpack(packed[:cut])


@pytest.mark.parametrize("kind", [Trajectory, BatchShard, StepReport])
@given(noise=st.binary(max_size=40))
def test_foreign_bytes_are_a_value_error(kind, noise):
    with pytest.raises(ValueError, match="bytes"):
        kind.unpack(noise)


@cases("kind", [Trajectory, BatchShard, StepReport])
@cases("data", [b"\x91" * 100_000, b"\xc1", b"\x80", b"\x81\xa4rows\xc0"])
def test_hostile_bytes_are_a_value_error(kind, data):
    with pytest.raises(ValueError, match="bytes"):
        kind.unpack(data)


@given(TRAJECTORIES, st.sampled_from(ARRAYS))
def test_a_short_array_is_a_value_error(trajectory, name):
    rows_ = [r for r in trajectory.rows if len(r)]
    for row in rows_:
        blocks = pack_row(row)
        with pytest.raises(ValueError, match=r"Row|buffer|runs"):
            unpack_row(blocks | {name: blocks[name][:-1]})


def one(**changes) -> Trajectory:
    values = {"outcome": Outcome.COMPLETED, "reward": 1.0, "rows": []} | changes
    return Trajectory(episode_id="e", group_id="g", task_id="t", **values)


def test_lone_surrogates_are_replaced():
    found = Trajectory.unpack(one(messages=[{"content": ["a\ud800b😀"]}], error="\udfff").pack())
    assert (found.messages, found.error) == ([{"content": ["a\ufffdb😀"]}], "\ufffd")


def test_numpy_scalars_are_numbers():
    found = Trajectory.unpack(one(reward=np.float32(0.5), metrics={"n": np.int64(2)}).pack())
    assert (found.reward, found.metrics) == (0.5, {"n": 2.0})


def test_trained_versions_are_those_of_trained_tokens():
    row = Row(
        tokens=np.arange(4, dtype=np.int32),
        loss_mask=np.array([False, True, True, False]),
        behavior_logprobs=np.zeros(4, np.float32),
        policy_versions=np.array([-1, 3, 2, 1], np.int32),
        admitted_versions=np.array([-1, 3, 2, 1], np.int32),
        temperatures=np.ones(4, np.float32),
        turn_ids=np.zeros(4, np.int32),
        times_s=np.zeros(4),
    )
    found = one(rows=[row, row])
    assert (found.trained_versions, found.num_trained, found.num_tokens) == ([2, 3], 4, 8)
    assert one().trained_versions == []


def test_a_turn_is_credited_with_what_follows_from_it_and_with_its_lineage():
    credit = Credit(
        parents=[-1, 0, -1, 1, 0],  # 0 - 1 - 3, 0 - 4, and 2 alone
        lineages=[0, 0, 1, 0, 0],
        turn_rewards=[1.0, 2.0, 4.0, 8.0, 16.0],
        lineage_rewards=[0.5, 0.25],
    )
    assert credit.turn_returns(0.5) == [1 + 1 + 2 + 8 + 0.5, 2 + 4 + 0.5, 4.25, 8.5, 16.5]
    assert credit.turn_returns(0.0) == [1.5, 2.5, 4.25, 8.5, 16.5]
    assert Credit(parents=[-1], lineages=[0]).turn_returns(1.0) == []


def test_actions_are_those_that_were_recorded():
    assert one().actions is None
    assert one(actions_json=[]).actions == []
    assert one(actions_json=[b'{"content": "5"}']).actions == [{"content": "5"}]


def test_rewards_are_added_within_their_bounds():
    assert added_reward(1.5, -2.0) == -0.5
    assert added_reward(0.0, MAX_REWARD) == added_reward(2 * MAX_REWARD, -MAX_REWARD) == MAX_REWARD
    assert added_reward(0.0, -MAX_REWARD) == -MAX_REWARD
    for before, value in ((0, 2 * MAX_REWARD), (MAX_REWARD, MAX_REWARD), (0, float("nan"))):
        for sign in (1, -1):
            with pytest.raises(ValueError, match="must be finite, and so must the sum"):
                added_reward(sign * before, sign * value)


def test_only_completed_and_truncated_train():
    assert [o for o in Outcome if o.trains] == [Outcome.COMPLETED, Outcome.TRUNCATED]


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_train_and_eval_seeds_never_meet(seed, index):
    train, held_out = SeededTasks("train", seed=seed), SeededTasks("eval", seed=seed)
    assert train[index].seed % 2 == 0
    assert held_out[index].seed % 2 == 1
    assert train[index] == SeededTasks("train", seed=seed)[index]


def test_an_endless_source_has_no_length():
    source: TaskSource = SeededTasks("train")
    with pytest.raises(TypeError, match="infinite"):
        len(source)


@given(rows())
def test_rows_of_earlier_versions_are_read(row):
    old = {name: getattr(row, name).tobytes() for name in ARRAYS}
    again = unpack_row(old)
    assert all(np.array_equal(getattr(again, name), getattr(row, name)) for name in ARRAYS)
    assert (again.lineage, again.parent, again.choices, again.experts) == (0, -1, None, None)


@given(rows(), st.integers(0, 9))
def test_the_head_of_a_row_has_its_choices(row, length):
    head = row.head(length)
    assert head.tokens.tolist() == row.tokens[:length].tolist()
    if row.choices is not None:
        assert head.choices.index.tolist() == row.choices.index[:length].tolist()
        assert head.choices.sets == row.choices.sets
        with pytest.raises(ValueError, match="choices"):
            replace(row, choices=token_records.Choices(np.zeros(99, np.int32), [b""]))
    if row.experts is not None:
        assert head.experts.ids.tolist() == row.experts.ids[:length].tolist()
        with pytest.raises(ValueError, match="experts"):
            replace(row, experts=token_records.Experts(np.zeros((99, 1, 1), np.int16)))
    if row.teacher_logprobs is not None:
        assert (
            head.teacher_logprobs.logprobs.tolist()
            == row.teacher_logprobs.logprobs[:length].tolist()
        )
        with pytest.raises(ValueError, match="teacher_logprobs"):
            replace(
                row, teacher_logprobs=token_records.TeacherLogprobs(np.zeros((99, 1), np.float32))
            )


def test_a_teacher_that_said_nothing_comes_back_silent():
    told = token_records.TeacherLogprobs(np.array([[np.nan, -1], [np.nan, np.nan]], np.float32))
    again = token_records.TeacherLogprobs.unpack(told.pack(), length=2)
    assert again.logprobs.tobytes() == told.logprobs.tobytes()
    assert again.index.tolist() == [True, False]
    for blocks in ({"logprobs": b"1234"}, {"teachers": 3}):
        with pytest.raises(ValueError, match=r"teachers of a row|reshape"):
            token_records.TeacherLogprobs.unpack({**told.pack(), **blocks}, length=2)


def branch(row: Row, at: int, length: int) -> Row:
    """A row that has the first `at` tokens of `row`, which train there, and others after them."""
    other = long_row(length)
    arrays = {n: np.concatenate([getattr(row, n)[:at], getattr(other, n)[at:]]) for n in ARRAYS}
    arrays["tokens"] = np.where(np.arange(length) < at, arrays["tokens"], 7).astype(np.int32)
    arrays["loss_mask"] = arrays["loss_mask"] & (np.arange(length) >= at)
    index = np.where(np.arange(length) % 3, token_records.ALL, 0).astype(np.int32)
    some = token_records.Choices(index, [token_records.packed_set(b"\x05")]) if at % 2 else None
    told = some_told(length, np.random.default_rng(at)) if at % 2 else None
    return replace(other, choices=some, teacher_logprobs=told, parent=0, **arrays)


def test_what_rows_have_in_common_is_stored_once():
    first = long_row(1000)
    for at, length in ((990, 1100), (501, 700), (64, 400), (63, 300), (300, 300)):
        second = branch(first, at, length)
        rows_ = [first, second, branch(second, length - 9, 1200)]
        apart = sum(len(one(rows=[row]).pack()) for row in rows_)
        whole = one(rows=rows_)
        assert plain(Trajectory.unpack(whole.pack())) == plain(whole)
        if at > 500:
            assert len(whole.pack()) < 0.7 * apart
        whole.keep_packed()
        assert plain(Trajectory.unpack(whole.pack())) == plain(whole)


@cases("differs", [None, 3, 700])
def test_experts_that_rows_have_in_common_are_stored_once(differs):
    seed = np.random.default_rng(0)
    first = replace(long_row(1000), experts=some_experts(1000, seed))
    second = branch(first, 800, 900)
    ids = np.concatenate([first.experts.ids[:800], some_experts(100, seed).ids])
    if differs is not None:
        ids[differs] = 1
    whole = one(rows=[first, replace(second, experts=token_records.Experts(ids))])
    assert plain(Trajectory.unpack(whole.pack())) == plain(whole)
    apart = sum(len(one(rows=[row]).pack()) for row in whole.rows)
    assert (len(whole.pack()) < 0.7 * apart) == (differs is None)


@cases("shared", [[5, 100], [0, 10**9], [0], "x", [0, "many"]])
def test_a_reference_to_no_row_is_refused(shared):
    first = long_row(1000)
    head = msgspec.msgpack.decode(one(rows=[first, branch(first, 900, 1000)]).pack())
    head["rows"][1]["shared"] = shared
    with pytest.raises(ValueError, match="not a trajectory"):
        Trajectory.unpack(msgspec.msgpack.encode(head))


BAD_CHOICES = {
    "short": {"index": zlib.compress(np.zeros(4, np.int32).tobytes())},
    "unknown set": {"index": zlib.compress(np.full(5, 1, np.int32).tobytes())},
    "no mark": {"index": zlib.compress(np.full(5, -3, np.int32).tobytes())},
    "not compressed": {"index": b"1234"},
    "no sets": {"sets": None},
}


@cases("what", BAD_CHOICES)
def test_choices_that_are_none_are_refused(what):
    row = long_row(5)
    whole = token_records.Choices(np.zeros(5, np.int32), [token_records.packed_set(b"\x03")])
    blocks = pack_row(replace(row, choices=whole))
    assert plain(unpack_row(blocks).choices) == plain(whole)
    with pytest.raises((ValueError, TypeError), match=r"choices|set|iterable"):
        unpack_row(blocks | {"choices": blocks["choices"] | BAD_CHOICES[what]})


BAD_EXPERTS = {
    "of another length": {"shape": [4, 2, 1]},
    "of another shape": {"shape": [5, 2]},
    "of another size": {"shape": [5, 2, 2]},
    "not compressed": {"ids": b"1234"},
    "no shape": {"shape": None},
}


@cases("what", BAD_EXPERTS)
def test_experts_that_are_none_are_refused(what):
    whole = token_records.Experts(np.zeros((5, 2, 1), np.int16))
    blocks = pack_row(replace(long_row(5), experts=whole))
    assert plain(unpack_row(blocks).experts) == plain(whole)
    with pytest.raises((ValueError, TypeError), match=r"experts|reshape|iterable"):
        unpack_row(blocks | {"experts": blocks["experts"] | BAD_EXPERTS[what]})


def test_a_token_has_the_experts_that_were_told_first():
    def told(*ids: int) -> np.ndarray:
        return np.array(ids, np.int16)[:, None, None]

    whole = token_records.experts_of([(0, told(1, 2)), (1, told(5, 6)), (3, told(7))], 5)
    assert whole.ids[:, 0, 0].tolist() == [1, 2, 6, 7, token_records.UNKNOWN_EXPERT]
    assert whole.index.tolist() == [True, True, True, True, False]
    assert token_records.experts_of([], 5) is None
    with pytest.raises(ValueError, match="in a row of 3 tokens"):
        token_records.experts_of([(2, told(1, 2))], 3)


def test_joined_choices_keep_each_set_once():
    one, two = (token_records.packed_set(bytes([n])) for n in (3, 5))
    first = token_records.Choices(np.array([0, token_records.FORCED, 1], np.int32), [one, two])
    second = token_records.Choices(np.array([0, token_records.ALL, 0], np.int32), [two])
    whole = token_records.joined([(2, None), (3, first), (0, None), (3, second)])
    assert whole.index.tolist() == [-1, -1, 0, -2, 1, 1, -1, 1]
    assert list(whole.sets) == [one, two]
    assert token_records.joined([(2, None), (0, None)]) is None


def long_row(length: int) -> Row:
    """Of prompts and replies by turns."""
    sampled = np.arange(length) % 200 >= 60
    return Row(
        tokens=np.arange(length, dtype=np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.linspace(-1, 0, length, dtype=np.float32),
        policy_versions=np.where(sampled, 3, -1).astype(np.int32),
        admitted_versions=np.where(sampled, 3, -1).astype(np.int32),
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, np.arange(length) // 200, -1).astype(np.int32),
        times_s=np.linspace(0, 1, length),
    )


def test_a_long_row_takes_half_the_bytes():
    length = 1000
    row = long_row(length)
    packed = sum(len(block) for block in pack_row(row).values() if isinstance(block, bytes))
    assert packed < 17 * length


@cases("lengths", [[2**31 - 1, 2**31 - 1], [-3, 8], [0, 5], [5, 1], [5]])
def test_runs_that_are_none_are_refused(lengths):
    numbers = np.array([0, 0, 1, 1, 1], np.int32)
    blocks = pack_row(
        Row(
            tokens=numbers,
            loss_mask=numbers > 0,
            behavior_logprobs=numbers.astype(np.float32),
            policy_versions=numbers,
            admitted_versions=numbers,
            temperatures=numbers.astype(np.float32),
            turn_ids=numbers,
            times_s=numbers.astype(np.float64),
        )
    )
    with pytest.raises(ValueError, match="runs"):
        unpack_row(blocks | {"runs": np.array(lengths, np.int32).tobytes()})


@given(TRAJECTORIES)
def test_what_is_counted_once_is_what_the_arrays_say(trajectory):
    for _ in range(2):
        rows = trajectory.rows
        trained = [int(v) for r in rows for v in r.policy_versions[r.loss_mask]]
        sampled = [int(v) for r in rows for v in r.policy_versions if v != NOT_SAMPLED]
        assert trajectory.num_trained == len(trained)
        assert trajectory.num_sampled == len(sampled)
        assert list(trajectory.trained_versions) == sorted(set(trained))
        assert trajectory.oldest_version == min(trained, default=None)
        trajectory = Trajectory.unpack(trajectory.pack())


@given(TRAJECTORIES)
def test_a_row_that_is_kept_packed_is_the_same_row(trajectory):
    before, counts = plain(trajectory), [row.counts for row in trajectory.rows]
    bytes_before = trajectory.pack()
    trajectory.keep_packed()
    trajectory.keep_packed()  # nothing to do
    assert plain(trajectory) == before
    assert [row.counts for row in trajectory.rows] == counts
    assert trajectory.pack() == bytes_before
    for row in trajectory.rows:
        assert plain(replace(row)) == plain(row) == plain(pickle.loads(pickle.dumps(row)))
        assert plain(unpack_row(pack_row(row))) == plain(row)
        with pytest.raises(AttributeError, match="nothing_of_the_kind"):
            _ = row.nothing_of_the_kind


def test_a_row_that_is_kept_packed_takes_half_the_memory():
    tracemalloc.start()
    try:
        row = long_row(8000)
        with_arrays = tracemalloc.get_traced_memory()[0]
        row.keep_packed()
        packed = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert with_arrays > 8000 * 30
    assert packed < 8000 * 17 + 2000


@given(rows())
def test_another_row_counts_anew(row):
    assert len(row.counts.versions) <= row.counts.trained <= row.counts.sampled
    after = replace(row, policy_versions=np.full(len(row), 7, np.int32))
    assert list(after.counts.versions) == [7] * bool(row.loss_mask.any())
    assert after.counts.sampled == len(row)


@cases(
    "metrics, expected",
    [
        ({}, "{}"),
        ({"forks": 0.0, "forks_edited": 3.0}, "{}"),  # the sum decides
        ({"forks": 3.0, "forks_edited": 2.0, "forks_model": 1.0}, '{"edited": 2, "model": 1}'),
        ({"forks": 1.0, "forks_edited": 1.0, "forks_model": 0.0, "turns": 4.0}, '{"edited": 1}'),
        ({"forks_edited": 1.0}, '{"edited": 1}'),
    ],
)
def test_forks_are_counted_by_cause(metrics, expected):
    assert forks_json(metrics) == expected


@given(st.sets(st.integers(0, 3000), max_size=600))
def test_a_set_has_one_form_however_it_is_given(ids):
    mask = np.zeros(max(ids, default=0) + 1, np.uint8)
    mask[list(ids)] = 1
    bits = np.packbits(mask, bitorder="little").tobytes()
    packed = token_records.set_of([*ids, *ids])
    assert packed == token_records.packed_set(bits)
    found = np.unpackbits(token_records.unpacked_set(packed), bitorder="little")
    assert set(np.flatnonzero(found)) == ids
    few = token_records.few_ids(packed)
    assert (few is not None) == (len(ids) <= token_records._FEW)
    for at in (3, len(packed) - 1):
        damaged = packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :]
        with pytest.raises(ValueError, match="set of allowed tokens"):
            token_records.unpacked_set(damaged)


def test_sets_of_earlier_runs_are_compressed_masks():
    assert token_records.unpacked_set(zlib.compress(b"\x05")).tolist() == [5]
    assert token_records.few_ids(zlib.compress(b"\x05")) is None
