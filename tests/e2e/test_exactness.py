"""`arl bench exactness`, a few episodes of it; and that what is wrong would be found."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentgym_rl.core import NOT_SAMPLED, Row
from tests.kit.cases import cases

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.exactness import VLLM_PYTHON, measure
from benchmarks.exactness_loops import babbler
from benchmarks.exactness_loops.compare import compare
from benchmarks.exactness_loops.templates import chats
from benchmarks.exactness_loops.views import View, journaled, relayed, turns

FEATURES = (
    *("tool calls", "malformed calls", "thoughts", "truncated", "stop strings", "streamed"),
    *("unicode said", "unicode heard", "turns of several versions", "retries"),
)


@pytest.fixture(scope="module")
def babble(tmp_path_factory):
    templates = chats(babbler.tokenizer())
    folder = tmp_path_factory.mktemp("babbler")
    return folder, templates, babbler.make(folder, templates, steps=30, versions=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_rows_are_what_a_real_engine_was_fed_and_sampled(engine, babble):
    if engine == "vllm" and not VLLM_PYTHON:
        pytest.skip("no vLLM here: ARL_VLLM_PYTHON names no interpreter (make test-vllm)")
    found = measure(engine, *babble, episodes=32, seed=3)
    assert found["mismatches"] == {}, found["errors"]
    assert found["episodes"] == 32
    assert found["turns"] > 64
    assert found["rows"] == found["forks"] + 32 or found["features"]["lost replies"]
    assert {name for name in FEATURES if not found["features"].get(name)} == set()


# ---------------------------------------------------------------------- the comparison itself
FIRST = View([1, 2], [3, 4, 5], [-0.1, -0.2, -0.3], [0, 0, 1], [1.0, 2.0, 3.0], "stop")
SECOND = View([1, 2, 3, 4, 5, 6], [7, 8], [-0.4, -0.5], [1, 1], [4.0, 5.0], "stop")
VIEWS = {"e-0": FIRST, "e-1": SECOND}
PATH = (None, None, 0, 0, 0, None, 1, 1)


def _row(*, trains=True) -> Row:
    sampled = np.array([turn is not None for turn in PATH])

    def spread(values, other, dtype):
        array = np.full(len(PATH), other, dtype)
        array[sampled] = values
        return array

    return Row(
        tokens=np.arange(1, 9, dtype=np.int32),
        loss_mask=sampled & trains,
        behavior_logprobs=spread([*FIRST.logprobs, *SECOND.logprobs], 0, np.float32),
        policy_versions=spread([0, 0, 1, 1, 1], NOT_SAMPLED, np.int32),
        admitted_versions=spread([0, 0, 0, 1, 1], NOT_SAMPLED, np.int32),
        temperatures=spread(1.0, 0, np.float32),
        turn_ids=spread([0, 0, 0, 1, 1], -1, np.int32),
        times_s=spread([1.0, 2.0, 3.0, 4.0, 5.0], 0, np.float64),
    )


def _wrong(*rows: Row, delivered=("e-0", "e-1")) -> dict[str, int]:
    names = ["e-0", "e-1"]
    return dict(compare(rows, names, VIEWS, delivered=delivered, temperature=1.0))


def test_rows_like_the_engines_view_are_right():
    assert _wrong(_row()) == {}


@cases(
    "field, array",
    [
        ("tokens", "tokens"),
        ("logprobs", "behavior_logprobs"),
        ("versions", "policy_versions"),
        ("temperatures", "temperatures"),
        ("times", "times_s"),
    ],
)
@cases("place", [0, 3, 5, 7])
def test_one_wrong_entry_is_found(field, array, place):
    row = _row()
    values = getattr(row, array).copy()
    values[place] += 1
    assert _wrong(replace(row, **{array: values}))[field] >= 1


@pytest.mark.parametrize("place", [1, 3, 5])
def test_a_token_that_trains_wrongly_is_found(place):
    row = _row()
    mask = row.loss_mask.copy()
    mask[place] = not mask[place]
    assert _wrong(replace(row, loss_mask=mask))["mask"] >= 1


def test_turns_train_once_if_their_client_got_them():
    assert _wrong(_row(), _row()) == {"not_once": 2}
    assert _wrong(_row(trains=False)) == {"not_once": 2}
    assert _wrong(delivered=()) == {}
    assert _wrong(_row(), _row(), delivered=()) == {"unseen": 2}


def test_a_row_longer_than_what_was_sampled_is_found():
    arrays = [
        name
        for name in Row.__slots__
        if not name.startswith(("lineage", "parent", "choices", "experts", "teacher_logprobs", "_"))
    ]
    longer = {name: np.append(getattr(_row(), name), 0) for name in arrays}
    longer["turn_ids"][-1] = -1
    longer = {n: v.astype(getattr(_row(), n).dtype) for n, v in longer.items()}
    assert _wrong(Row(**longer))["tokens"] == 1


def test_the_requests_of_an_interrupted_turn_are_one(tmp_path):
    more = View([1, 2, 3, 4, 5], [9], [-1.0], [2], [9.0], "stop")
    joined = turns({"e-0": FIRST, "e-0.1": more})["e-0"]
    assert (joined.ids, joined.versions, joined.finish) == ([3, 4, 5, 9], [0, 0, 1, 2], "stop")
    with pytest.raises(AssertionError, match=r"e-0\.1 was not fed"):
        turns({"e-0": FIRST, "e-0.1": SECOND})


def test_streams_and_whole_replies_are_read_alike():
    asked = b'{"request_id": "e-0", "token_ids": [1, 2], "sampling_params": {}}'
    logprobs = '{"content": [{"token_id": 3, "logprob": -0.5}]}'
    spans = '[{"version": "0.7", "start": 0, "end": 1}]'
    choice = f'{{"token_ids": [3], "logprobs": {logprobs}, "weight_versions": %s'
    whole = f'{{"choices": [{choice % spans}, "finish_reason": "stop"}}]}}'
    last = (
        f'{{"choices": [{{"token_ids": [], "weight_versions": {spans}, "finish_reason": "stop"}}]}}'
    )
    stream = f'data: {{"choices": [{choice % "null"}}}]}}\n\ndata: {last}\n\ndata: [DONE]\n\n'
    expected = {"e-0": View([1, 2], [3], [-0.5], [7], None, "stop")}
    assert relayed([(asked, whole.encode())]) == expected
    assert relayed([(asked, stream.encode())]) == expected


def test_an_empty_journal_says_nothing(tmp_path):
    (tmp_path / "j").write_text("")
    assert journaled(tmp_path / "j") == {}
