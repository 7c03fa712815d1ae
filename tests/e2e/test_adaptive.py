"""Groups at once, adapted in a whole run."""

import signal
import time

import pytest

pytestmark = pytest.mark.slow


def test_a_run_that_begins_with_one_group_at_once_goes_up(start):
    """However fast the machine is: it is told to end once that has been seen."""
    run = start(
        "--steps=1000",
        "--eval.num_tasks=0",
        "--rollout.concurrency=adaptive",
        "--rollout.start_concurrent=1",
    )
    limits, end = [1.0], time.monotonic() + 200
    while limits[-1] == 1:
        assert run.process.poll() is None, run.wait(5)[2]
        assert time.monotonic() < end, limits
        time.sleep(0.1)
        if (run.folder / "metrics.jsonl").exists():
            limits = [1.0, *(step["rollout/max_concurrent"] for step in run.metrics())]
    run.process.send_signal(signal.SIGINT)
    run.wait(60)
    assert 1 < max(limits) <= 3 * 4
