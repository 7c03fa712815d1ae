"""A run of four episodes, and its inspector."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_runs import Client, make_client, make_episode, make_run

from agentgym_rl.core import Outcome


@pytest.fixture
def run(tmp_path) -> Path:
    forked = {"forks": 3.0, "forks_seam": 1.0, "forks_n_sibling": 2.0}
    failed = {"outcome": Outcome.AGENT_ERROR, "error": "no", "reward": -1.0, "env_id": "tools"}
    groups = {
        "g0": [make_episode("g0-0", "g0"), make_episode("g0-1", "g0", reward=0.0, start_s=200.0)],
        "g1": [make_episode("g1-0", "g1", metrics=forked)],
        "g2": [make_episode("g2-0", "g2", **failed)],
    }
    return make_run(tmp_path / "runs" / "first", groups)


@pytest.fixture
def ask(run) -> Client:
    return make_client(run.parent)
