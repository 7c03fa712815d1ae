"""No byte of one episode is in the memory of a later one: a scan, and a control of the scanner."""

from collections.abc import Callable

import pytest
from arena import ALL_MODES, DOCKER, num_processes
from asking import Driver

from tests.exhaustive import WITH_DOCKER


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*ALL_MODES, *[DOCKER] * WITH_DOCKER])
def test_no_episode_is_in_anothers_memory(mode: str, driver: Callable[[str], Driver]) -> None:
    answer = driver(mode).ask(120, op="scan")
    for place in ("same", "beside", "other", "session"):
        copies, scanned_mb = answer[place]
        assert (place, copies) == (place, 0)
        assert scanned_mb >= 8
    assert answer["control"][0] >= 1
    if mode == DOCKER:  # process 1 has it, and is closed to them; what they are copies of has not
        assert answer["servers"][0] == 0
        assert answer["servers"][1] >= 1
    elif answer["outside"] is not None:  # the launcher and the child that waits, seen by the host
        assert answer["outside"] == [0, num_processes(mode, in_use=1)]
