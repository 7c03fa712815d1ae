"""Training on programs that really run, through every part, as a user starts it."""

import pytest

from tests.contracts.sandboxes import working
from tests.exhaustive import WITH_DOCKER

pytestmark = pytest.mark.slow
CODE = ("--env=code", "--agent=coder:Sometimes", "--eval.num_tasks=8", "--steps=3")
ROOM = ("--engine.max_model_len=1024", "--rollout.tool_timeout_s=60")


@pytest.mark.parametrize("sandbox", ["local", *["docker"] * WITH_DOCKER])
def test_programs_are_run_graded_and_trained_on(start, sandbox):
    working(sandbox)
    run = start(*CODE, *ROOM, f"--sandbox={sandbox}")
    result = run.result()
    assert result["steps"] == 3
    assert result["outcomes"] == {"completed": result["outcomes"]["completed"]}
    assert result["sandbox"]["programs"] > 3 * result["num_episodes"]
    assert set(result["sandbox"]["statuses"]) <= {"ok", "error"}
    rewards = [step["reward/mean"] for step in run.metrics()]
    assert all(0 < reward < 1 for reward in rewards)
    last = run.metrics()[-1]
    assert last["episode/verdict_accepted"] == last["reward/mean"]
    assert run.leftovers() == set()
