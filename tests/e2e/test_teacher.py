"""A run with teachers: one that `arl engine` serves, and one in the trainer's ranks."""

import numpy as np
import pytest
from arl_audit.replay_batch import replay

from agentgym_rl.storage import EpisodeLog

from .forked import ForkedArl

pytestmark = pytest.mark.slow


def furthest(rows, *, version):
    """The largest difference of the served teacher and the policy at a trained token, in nats."""
    gaps = [
        np.abs(row.behavior_logprobs - row.teacher_logprobs.logprobs[:, 0])[row.loss_mask].max()
        for row in rows
        if set(row.policy_versions[row.loss_mask].tolist()) == {version}
    ]
    return max(gaps)


def test_a_run_has_a_served_and_a_loaded_teacher_and_is_replayed_without_them(start):
    server = ForkedArl("engine", "--model=bundled/math", "--port=0")
    try:
        url = server.readline().split()[-1]
        loaded = '{ model = "bundled/math", weight = 2.0, only = { env_id = "math" } }'
        models = (
            f'[{{ model = "{url}" }}, {{ model = "bundled/math", only = {{ x = 1 }} }}, {loaded}]'
        )
        # Each batch is of one version, the policy's own.
        keys = ("--steps=3", "--eval.num_tasks=0", "--rollout.max_staleness=0")
        run = start(*keys, f"--algo.teacher.models={models}")
        run.result()
    finally:
        server.kill()
        server.communicate(timeout=30)
    steps = run.metrics()
    assert [step["teacher/taught"] for step in steps] == [1, 1, 1]
    assert abs(steps[0]["teacher/kl"]) < 1e-4  # both teachers are what the policy begins with
    assert abs(steps[-1]["teacher/kl"]) > abs(steps[0]["teacher/kl"])
    assert steps[-1]["time/teacher"] > 0  # the loaded one
    log = EpisodeLog(run.folder / "episodes.db")
    rows = [row for episode in log.trajectories() for row in episode.rows if row.num_trained]
    log.close()
    assert all(row.teacher_logprobs.index[row.loss_mask].all() for row in rows)
    assert {row.teacher_logprobs.logprobs.shape[1] for row in rows} == {3}
    assert furthest(rows, version=0) < 1e-4
    assert furthest(rows, version=2) > 1e-3
    assert replay(run.folder, step=2)["bit_for_bit"]
