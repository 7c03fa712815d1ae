"""Every recorded log-prob is that of the very version recorded with it, in a real run.

With `interrupt = "recompute"` each token is a plain forward of the version that sampled it, so
versions can be checked from the outside: recompute the log-probs under every version's weights.
"""

import contextlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentgym_rl.episode_log import EpisodeLog
from agentgym_rl.model import BUNDLED
from agentgym_rl.trajectory import Row

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4


class Policy:
    """The policy at any version of a run that kept its weights."""

    def __init__(self, folder) -> None:
        self._folder = folder
        self._model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
        self._initial = {k: v.clone() for k, v in self._model.state_dict().items()}

    def load(self, version: int) -> None:
        kept = self._folder / f"v-{version}.safetensors"
        state = load_file(kept) if version else self._initial
        missing, unexpected = self._model.load_state_dict(state, strict=False)
        assert set(missing) <= {"lm_head.weight"}  # tied: stored once
        assert not unexpected

    @torch.inference_mode()
    def logprobs(self, row: Row) -> np.ndarray:
        """Log-prob of every token of a row given those before it; 0 at position 0."""
        tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
        found = torch.log_softmax(self._model(tokens).logits[0, :-1], -1)
        picked = found.gather(1, tokens[0, 1:, None])[:, 0]
        return np.concatenate([[0.0], picked.numpy()])


def worst_error(rows: list[Row], labels: list[np.ndarray], policy: Policy) -> float:
    """Largest |recorded − recomputed| if `labels` were the versions of the sampled tokens."""
    worst = 0.0
    for version in np.unique(
        np.concatenate([x[r.loss_mask] for r, x in zip(rows, labels, strict=True)])
    ):
        policy.load(int(version))
        for row, own in zip(rows, labels, strict=True):
            chosen = row.loss_mask & (own == version)
            if chosen.any():
                gap = np.abs(policy.logprobs(row) - row.behavior_logprobs)[chosen]
                worst = max(worst, float(gap.max()))
    return worst


def boundary_moved(row: Row) -> np.ndarray:
    """The row's versions with the first change moved one sampled token later."""
    labels = row.policy_versions.copy()
    sampled = np.flatnonzero(row.loss_mask)
    change = next(i for i in range(1, len(sampled)) if labels[sampled[i]] != labels[sampled[i - 1]])
    labels[sampled[change]] = labels[sampled[change - 1]]
    return labels


def test_versions_are_right_token_for_token(start):
    run = start(
        "--steps=8",
        "--rollout.groups_per_batch=8",
        "--rollout.group_size=8",
        "--eval.num_tasks=0",
        "--rollout.interrupt=recompute",
        "--weights.keep_in_run=true",
        "--trainer.learning_rate=2e-3",  # versions must be far enough apart to tell
        "--trainer.schedule=constant",
    )
    run.result()
    with contextlib.closing(EpisodeLog(run.folder / "episodes.db")) as log:
        rows = [row for episode in log.trajectories() for row in episode.rows]
    spanning = [row for row in rows if len(np.unique(row.policy_versions[row.loss_mask])) > 1]
    assert spanning, "no episode spans two policy versions"
    policy = Policy(run.folder / "weights")
    assert worst_error(rows, [row.policy_versions for row in rows], policy) <= TOLERANCE
    moved = worst_error(spanning, [boundary_moved(row) for row in spanning], policy)
    assert moved > 2 * TOLERANCE, "a boundary planted one token off goes unnoticed"
