"""Deltas of a request as one."""

from agentgym_rl.core.engine import Delta, joined


def test_deltas_are_joined_and_the_last_one_has_the_end():
    first = Delta([1, 2], [-0.5, -1.0], [3, 3], [1.0, 2.0], support=[[1, 9], [2]])
    last = Delta([4], [-2.0], [4], [3.0], "stop", 7, support=[[4, 5]])
    assert joined([first, last]) == Delta(
        *([1, 2, 4], [-0.5, -1.0, -2.0], [3, 3, 4], [1.0, 2.0, 3.0]),
        finish_reason="stop",
        stop_reason=7,
        support=[[1, 9], [2], [4, 5]],
    )
    assert joined([first]).finish_reason is None
