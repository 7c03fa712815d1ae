"""`arl audit` on small runs with real log-probs, and on the same runs with a fault planted."""

import asyncio
import contextlib
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from arl_audit.recompute import multiplying_in
from arl_audit.tokens import _experts_of

from agentgym_rl.core import Row, StepReport
from agentgym_rl.core.token_records import Experts
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.weights import write_version
from tests.kit.versions import part_of


def relabelled(row: Row, shift: int) -> Row:
    """The row with the versions of its last five tokens `shift` later."""
    versions = row.policy_versions.copy()
    versions[-5:] += shift
    return replace(row, policy_versions=versions)


# ---------------------------------------------------------------- what passes
@pytest.mark.slow
def test_a_right_run_passes(run, rows, arl_audit):
    done = arl_audit(run(rows), "--json")
    assert done.code == 0
    report = done.report
    assert (report["passed"], report["coverage"], report["failures"]) == (True, 1.0, [])
    assert report["tokens"] == sum(row.num_trained for row in rows) == 40
    assert 0 < report["mean"] < report["p999"] <= report["max"] < 1e-4
    assert [v["tokens"] for v in report["versions"]] == [12, 15, 13]
    places = {name: found["tokens"] for name, found in report["places"].items()}
    assert places == {"one_version": 22, "before_update": 7, "after_update": 11}
    assert report["control"]["sharp"]
    assert report["steps_published"] == 1


def test_the_text_says_what_was_done(run, rows, arl_audit):
    done = arl_audit(run(rows))
    assert "40 trained tokens" in done.out
    assert "not finished: 1 of 3 training batches" in done.out
    assert "coverage 100.0%" in done.out
    assert done.out.endswith("PASSED\n")
    assert max(map(len, done.out.splitlines()[2:])) <= 100


def test_old_kv_is_reported_apart_where_it_is_kept(run, rows, mixed, arl_audit):
    folder = run([*rows, mixed], interrupt="keep")
    report = arl_audit(folder, "--json").report
    assert report["passed"]
    # Row 1 and 2 follow an update, too; that their KV was recomputed is not asked.
    assert report["mixed_kv"]["tokens"] == 6 + 5 + 7
    assert report["mixed_kv"]["max"] > 1e-3 > report["max"]
    assert "follow an update on old KV" in arl_audit(folder).out


def test_only_trained_groups_count(run, rows, arl_audit):
    folder = run([*rows, relabelled(rows[0], 1)], waiting={4})
    assert arl_audit(folder).code == 0
    assert arl_audit(folder, "--all").code == 1


@pytest.mark.slow
def test_a_live_run_is_audited_and_goes_on(run, rows, arl_audit):
    folder = run(rows)
    with contextlib.closing(EpisodeLog(folder / "episodes.db")) as log:
        asyncio.run(log.publish(StepReport(1, 2, {}), {}))
        assert "2 of 3 training batches" in arl_audit(folder).out
        asyncio.run(log.publish(StepReport(2, 3, {}), {}))
        assert "not finished" not in arl_audit(folder).out


def test_versions_that_do_not_differ_prove_little(run, rows, policy, arl_audit):
    same = np.where(rows[0].loss_mask, 1, -1).astype(np.int32)
    folder = run([rows[0], replace(rows[0], policy_versions=same)])
    shutil.rmtree(folder / "weights" / "v-1")
    path = write_version(folder / "weights", 1, policy.states[0])
    path.rename(folder / "weights" / "v-1")
    done = arl_audit(folder)
    assert done.code == 0
    assert "an off-by-one version could go unnoticed" in done.out


# ---------------------------------------------------------------- planted faults
@pytest.mark.parametrize(
    ("index", "shift", "said"),
    [(0, 1, "agree with the version BEFORE"), (3, -1, "agree with the version AFTER")],
)
def test_a_segment_off_by_one_version(run, rows, arl_audit, index, shift, said):
    planted = [*rows]
    planted[index] = relabelled(rows[index], shift)
    done = arl_audit(run(planted))
    assert done.code == 1
    assert "FAILED agreement: " in done.out
    assert said in done.out
    assert f"g{index}-0" in done.out
    assert "raw log-probs" not in done.out


def test_raw_logprobs(run, rows, policy, arl_audit):
    raw = np.where(rows[3].loss_mask, policy.raw(rows[3]), 0).astype(np.float32)
    done = arl_audit(run([*rows[:3], replace(rows[3], behavior_logprobs=raw)]), "--json")
    assert done.code == 1
    diagnosis = done.report["diagnosis"]
    assert diagnosis["temperature_1"] == diagnosis["tokens"] > 0
    assert "--logprobs-mode processed_logprobs" in diagnosis["hints"][0]
    assert {token["episode"] for token in done.report["worst"]} == {"g3-0"}


def test_old_kv_where_it_should_be_recomputed(run, rows, mixed, arl_audit):
    done = arl_audit(run([*rows, mixed], interrupt="recompute"))
    assert done.code == 1
    assert "the engine seems to have kept KV of older weights" in done.out
    assert "rollout.interrupt is 'recompute'" in done.out


def test_old_kv_of_unknown_admission_counts(run, mixed, arl_audit):
    admitted = np.where(mixed.loss_mask, -2, -1).astype(np.int32)
    done = arl_audit(run([replace(mixed, admitted_versions=admitted)], interrupt="keep"))
    assert "FAILED agreement: " in done.out


def test_nothing_explains_another_policy(run, rows, arl_audit):
    off = np.where(rows[0].loss_mask, rows[0].behavior_logprobs - 3, 0).astype(np.float32)
    done = arl_audit(run([replace(rows[0], behavior_logprobs=off)]))
    assert "8 of the 8 worst tokens fit neither a neighbouring version nor" in done.out


def test_wrong_packing_is_not_blamed_on_the_engine(run, chunked, arl_audit, monkeypatch):
    """A trainer that knows nothing of a model's chunks."""
    rows = [chunked.sample([[0] * 4, [0] * 6, [0] * 4], seed=seed) for seed in (1, 2)]
    folder = run(rows, of=chunked)
    assert arl_audit(folder).code == 0
    monkeypatch.setattr("agentgym_rl.trainer.attention.chunk_of", lambda module: 0)
    monkeypatch.setattr("agentgym_rl.trainer.packing_trial._local_spans", lambda config: set())
    done = arl_audit(folder)
    assert done.code == 1
    (hint,) = [line for line in done.out.splitlines() if line.startswith("hint: ")]
    assert "the engine is right" in hint


def test_a_logprob_that_is_no_number(run, mixed, arl_audit):
    lost = mixed.behavior_logprobs.copy()
    lost[-1] = np.nan
    done = arl_audit(run([replace(mixed, behavior_logprobs=lost)], interrupt="keep"), "--json")
    assert done.code == 1
    assert done.report["worst"][0]["recorded"] is None


def test_a_missing_version(run, rows, arl_audit):
    folder = run(rows)
    shutil.rmtree(folder / "weights" / "v-1")
    done = arl_audit(folder)
    assert done.code == 1
    assert "FAILED coverage: 15 trained tokens of version 1 were not recomputed" in done.out
    assert "v-1; only a run with --weights.keep_versions=all" in done.out


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_version(run, rows, arl_audit, cut):
    folder = run(rows)
    file = part_of(folder / "weights" / "v-2")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content[:-1000] if cut else content)
    done = arl_audit(folder, "--json")
    (failure,) = done.report["failures"]
    assert (done.code, done.report["coverage"]) == (1, 27 / 40)
    assert "v-2" in failure
    assert ("truncated" if cut else "digest") in failure


def test_a_version_under_the_name_of_another(run, rows, arl_audit):
    folder = run(rows)
    shutil.rmtree(folder / "weights" / "v-2")
    shutil.copytree(folder / "weights" / "v-1", folder / "weights" / "v-2")
    assert "are those of version 0.1, not of 2" in arl_audit(folder).out


def test_a_version_nobody_recorded(run, rows, arl_audit):
    lost = np.where(rows[0].loss_mask, -2, -1).astype(np.int32)
    done = arl_audit(run([*rows, replace(rows[0], policy_versions=lost)]))
    assert (
        "8 trained tokens of version -2 were not recomputed: their policy version was not"
        in done.out
    )


# ---------------------------------------------------------------- bfloat16
def bfloat16_run(run, policy, *, worse=0.0):
    """A run of two rows whose engine multiplied in bfloat16, and was `worse` nats off besides."""
    made = []
    for seed in (1, 2):
        row = policy.sample([[1] * 20, [1] * 20], seed=seed)
        with multiplying_in(policy.model, torch.bfloat16):
            found = policy.raw(row) - worse
        found = np.where(row.loss_mask, found, 0).astype(np.float32)
        made.append(replace(row, behavior_logprobs=found))
    return run(made, dtype="bfloat16")


def test_bfloat16_is_judged_by_means_and_by_its_own_rounding(run, policy, arl_audit):
    folder = bfloat16_run(run, policy)
    report = arl_audit(folder, "--json").report
    assert report["criterion"] == "mean of every version"
    assert report["rounding"] == pytest.approx(report["mean"], rel=1e-2)
    assert report["max"] > 2 * report["mean"] > 2e-3
    assert report["threshold"] == max(1e-2, 4 * report["rounding"])
    assert report["passed"]
    asked = arl_audit(folder, f"--threshold={report['mean'] / 2}", "--json").report
    assert not asked["passed"]


def test_bfloat16_has_no_room_for_more_than_rounding(run, policy, arl_audit):
    report = arl_audit(bfloat16_run(run, policy, worse=0.3), "--json").report
    assert report["threshold"] == max(1e-2, 4 * report["rounding"]) < 0.2
    assert not report["passed"]


def test_a_float32_engine_has_no_room_for_rounding(run, rows, arl_audit):
    report = arl_audit(run(rows), "--json").report
    assert (report["rounding"], report["threshold"]) == (None, 1e-4)


def test_bfloat16_notices_raw_logprobs(run, rows, policy, arl_audit):
    raw = np.where(rows[3].loss_mask, policy.raw(rows[3]), 0).astype(np.float32)
    done = arl_audit(run([replace(rows[3], behavior_logprobs=raw)] * 2, dtype="bfloat16"))
    assert re.search(r"tokens differ by more than 0\.0\d+ on average", done.out)
    assert "raw log-probs" in done.out


# ---------------------------------------------------------------- wrong use
def test_what_cannot_be_audited_is_explained(run, rows, arl_audit):
    folder = run(rows)
    assert "pass the folder of a run" in arl_audit(folder / "nowhere").err
    assert "so it is not a run folder" in arl_audit(folder / "weights").err
    assert "expected a number above 0" in arl_audit(folder, "--threshold=0").err
    shutil.rmtree(folder / "weights")
    done = arl_audit(folder)
    assert done.code == 2
    assert "run again with --weights.keep_versions=all" in done.err


def test_an_empty_run(run, rows, arl_audit):
    done = arl_audit(run(rows, waiting=range(len(rows))))
    assert done.code == 2
    assert "no trained token yet" in done.err


@pytest.mark.parametrize("content", [None, b"", b"no database at all"])
def test_no_episode_log(run, rows, arl_audit, content):
    folder = run(rows)
    (folder / "episodes.db").unlink()
    if content is not None:
        (folder / "episodes.db").write_bytes(content)
    done = arl_audit(folder)
    assert done.code == 2
    assert "episode log" in done.err


def test_experts_chosen_on_older_kv_do_not_count_for_a_later_turn():
    """Positions 2 and 3 are of turn 0, 6 and 7 of turn 1; an update came after position 2."""
    sampled = [False, False, True, True, False, False, True, True]
    versions = [-1, -1, 1, 2, -1, -1, 2, 2]
    row = Row(
        np.arange(8, dtype=np.int32),
        loss_mask=np.array(sampled),
        behavior_logprobs=np.zeros(8, np.float32),
        policy_versions=np.array(versions, np.int32),
        admitted_versions=np.array([-1, -1, 1, 1, -1, -1, 2, 2], np.int32),
        temperatures=np.ones(8, np.float32),
        turn_ids=np.array([-1, -1, 0, 0, -1, -1, 1, 1], np.int32),
        times_s=np.zeros(8),
        experts=Experts(np.zeros((8, 1, 1), np.int16)),
    )

    def known(keeps_kv: bool) -> list[int]:
        found = _experts_of(row, 2, keeps_kv=keeps_kv)
        return np.flatnonzero(found.index).tolist()

    # The experts of a token were chosen for the prediction of the next sampled one.
    assert known(False) == [2, 3, 4, 5, 6]
    assert known(True) == [3, 4, 5, 6]
