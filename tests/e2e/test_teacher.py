"""A run with teachers: one that `arl engine` serves, and one in the trainer's ranks."""

import pytest

from agentgym_rl.audit.replay_batch import replay
from agentgym_rl.storage.episode_log import EpisodeLog

from .forked import ForkedArl

pytestmark = pytest.mark.slow


def test_a_run_has_a_served_and_a_loaded_teacher_and_is_replayed_without_them(start):
    server = ForkedArl("engine", "--model=bundled/math", "--port=0")
    try:
        url = server.readline().split()[-1]
        loaded = '{ model = "bundled/math", weight = 2.0, only = { env_id = "math" } }'
        models = (
            f'[{{ model = "{url}" }}, {{ model = "bundled/math", only = {{ x = 1 }} }}, {loaded}]'
        )
        run = start("--steps=3", "--eval.num_tasks=0", f"--algo.teacher.models={models}")
        run.result()
    finally:
        server.kill()
        server.communicate(timeout=30)
    steps = run.metrics()
    assert [step["teacher/taught"] for step in steps] == [1, 1, 1]
    assert abs(steps[0]["teacher/kl"]) < 1e-4  # both teachers are what the policy begins with
    assert abs(steps[-1]["teacher/kl"]) > 1e-4
    assert steps[-1]["time/teacher"] > 0  # the loaded one
    log = EpisodeLog(run.folder / "episodes.db")
    rows = [row for episode in log.trajectories() for row in episode.rows if row.num_trained]
    log.close()
    assert all(row.told.index[row.loss_mask].all() for row in rows)
    assert {row.told.logprobs.shape[1] for row in rows} == {3}
    assert replay(run.folder, step=2)["bit_for_bit"]
