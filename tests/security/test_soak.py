"""Hundreds of executions, many of them cancelled or stopped: afterwards nothing is left of them.

A thousand (per mode) with ARL_EXHAUSTIVE=1; `ARL_SOAK=100000` for the full one (ten minutes or so).
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from arena import ALL_MODES, DOCKER, LANDLOCK_MODES, num_processes
from asking import Driver

from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER

NUM_EXECUTIONS = int(os.environ.get("ARL_SOAK", "1000" if EXHAUSTIVE else "200"))
NUM_IN_CONTAINERS = int(os.environ.get("ARL_SOAK", "300"))
MAX_GROWTH_KB = 24 << 10


@pytest.mark.slow
@pytest.mark.timeout(300 + NUM_EXECUTIONS / 20)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_nothing_is_left(mode: str, driver: Callable[[str], Driver]) -> None:
    answer = driver(mode).ask(200 + NUM_EXECUTIONS / 20, op="soak", count=NUM_EXECUTIONS)
    _check(answer, NUM_EXECUTIONS, kinds=6 if mode in LANDLOCK_MODES else 7)
    assert answer["before"]["processes"] == num_processes(mode)
    assert answer["before"]["cgroups"] == {"cgroup": 2}.get(mode, 0)


@pytest.mark.slow
@pytest.mark.timeout(300 + NUM_IN_CONTAINERS)
@pytest.mark.skipif(not WITH_DOCKER, reason="ARL_REQUIRE has no docker: make test-docker")
def test_no_docker_container_is_left(driver: Callable[[str], Driver]) -> None:
    answer = driver(DOCKER).ask(200 + NUM_IN_CONTAINERS, op="soak", count=NUM_IN_CONTAINERS)
    _check(answer, NUM_IN_CONTAINERS, kinds=7)
    assert (answer["before"]["containers"], answer["before"]["processes"]) == (1, 2)


def _check(answer: dict[str, Any], count: int, *, kinds: int) -> None:
    print(answer)
    assert answer["after"] == answer["before"]
    assert answer["grown_kb"] < MAX_GROWTH_KB
    assert answer["lost"] == 0
    assert len(answer["tally"]) == kinds
    assert sum(answer["tally"].values()) == count
