"""Groups at once, adapted in a whole run."""

import pytest

from agentgym_rl.metrics import read_metrics

pytestmark = pytest.mark.slow


def test_a_run_that_begins_with_one_group_at_once_goes_up(start):
    run = start(
        "--steps=8",
        "--eval.num_tasks=0",
        "--rollout.concurrency=adaptive",
        "--rollout.start_concurrent=1",
        "--logging.level=info",
    )
    result = run.result()
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    limits = [step["rollout/max_concurrent"] for step in read_metrics(run.folder / "metrics.jsonl")]
    assert limits[-1] > 1
    assert max(limits) <= 3 * 4
