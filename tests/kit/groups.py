"""Made-up rows and groups, and a fleet as the controller sees it."""

import numpy as np
import pytest

from agentgym_rl.core import Group, Outcome, Row, Trajectory


def make_row(versions: list[int], prompt: int = 3) -> Row:
    """Return a row of `prompt` context tokens and one trained token per entry of `versions`."""
    sampled = len(versions)
    length = prompt + sampled
    mask = np.arange(length) >= prompt
    return Row(
        tokens=np.arange(length, dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.array([-1] * prompt + versions, np.int32),
        admitted_versions=np.array([-1] * prompt + versions, np.int32),
        temperatures=mask.astype(np.float32),
        turn_ids=np.where(mask, 0, -1).astype(np.int32),
        times_s=np.where(mask, 1.0 + np.arange(length), 0.0),
    )


def make_group(name: str, versions: list[int], size: int = 2, reward: float = 1.0) -> Group:
    """Return a group whose every member sampled one token at each of `versions`."""
    members = [
        Trajectory(
            episode_id=f"{name}-{i}",
            group_id=name,
            task_id=f"task-{name}",
            outcome=Outcome.COMPLETED,
            reward=reward * (i % 2),
            rows=[make_row(versions)],
            num_turns=1,
        )
        for i in range(size)
    ]
    return Group(name, f"task-{name}", members)


@pytest.fixture
def group():
    return make_group


@pytest.fixture
def row():
    return make_row


class Publications:
    """A fleet as the controller sees it: `engines` get every version; `ended` has the results."""

    def __init__(self, **engines: str) -> None:
        self.engines = engines
        self.wanted = False
        self.silent_s: dict[str, float] = {}
        self.ended: list[tuple[int, list[str], dict[str, str]]] = []

    async def begin_publication(self, version: int) -> dict[str, str]:
        return self.engines

    async def begin_swap(self, version: int, lives) -> None:
        pass

    def end_swap(self, version: int, *, served, failed) -> None:
        pass

    async def end_publication(self, version, *, served, failed) -> None:
        self.ended.append((version, list(served), dict(failed)))
