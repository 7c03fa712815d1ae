"""Agents that restrict what is sampled: rows train on the policy restricted in the same way."""

import pytest

from agentgym_rl.core import NOT_SAMPLED
from agentgym_rl.storage import EpisodeReader

from .test_audit import CHANGING, audit

pytestmark = pytest.mark.slow

_RATE = "--trainer.learning_rate"
# At the rate of CHANGING a policy may come to write calls that do not end.
STABLE = (*(flag for flag in CHANGING if not flag.startswith(_RATE)), f"{_RATE}=3e-4")
FORCED = (*STABLE, "--agent=demanding:Demanding", "--rollout.interrupt=recompute")


def _episodes(run):
    reader = EpisodeReader(run.folder / "episodes.db")
    try:
        return [reader.trajectory(id) for id in reader.episode_ids()]
    finally:
        reader.close()


def test_turns_under_a_grammar_train_on_the_restricted_policy(start):
    run = start(*FORCED, "--algo.entropy_coef=0.001", "--trainer.head_chunk_tokens=7")
    run.result()
    episodes = _episodes(run)
    for episode in episodes:
        assert episode.metrics["constrained_turns"] == episode.num_turns == 2
        assert episode.metrics["unmatched_turns"] == episode.metrics["forced_missed"] == 0
        (row,) = episode.rows
        sampled = row.policy_versions != NOT_SAMPLED
        had_choice = sampled & (row.choices.index >= 0)
        assert 0 < row.num_trained < sampled.sum()
        assert row.loss_mask.tolist() == had_choice.tolist()
        assert set(row.behavior_logprobs[sampled & ~had_choice]) == {0.0}
    code, report = audit(run.folder)
    assert (code, report["failures"], report["coverage"]) == (0, [], 1.0)
    assert report["max"] <= 1e-4
    assert report["tokens"] == sum(episode.num_trained for episode in episodes)


def test_turns_without_unlikely_tokens_train_on_the_restricted_policy(start):
    run = start(*CHANGING, "--agent=demanding:Choosy", "--rollout.interrupt=recompute")
    run.result()
    episodes = _episodes(run)
    counts = [episode.metrics for episode in episodes]
    assert sum(of["constrained_turns"] for of in counts) == 0
    num_single = sum(of["single_choice_tokens"] for of in counts)
    assert num_single > 0
    sampled = sum(episode.num_sampled for episode in episodes)
    assert sum(episode.num_trained for episode in episodes) == sampled - num_single > 0
    code, report = audit(run.folder)
    assert (code, report["failures"], report["coverage"]) == (0, [], 1.0)
    assert report["max"] <= 1e-4
