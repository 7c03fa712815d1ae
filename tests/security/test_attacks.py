"""Each attack in each mode, then all of them at once with honest episodes in their midst."""

from collections.abc import Callable

import attacks  # noqa: F401  fills ATTACKS
import pytest
from arena import ALL_MODES, ATTACKS, DOCKER
from asking import Driver

EACH = [(attack.name, mode) for attack in ATTACKS.values() for mode in attack.modes]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), EACH, ids=[f"{name}-{mode}" for name, mode in EACH])
def test_attack_is_contained(name: str, mode: str, driver: Callable[[str], Driver]) -> None:
    driver(mode).ask(90, op="attack", name=name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*ALL_MODES, DOCKER])
def test_all_attacks_at_once_are_contained(mode: str, driver: Callable[[str], Driver]) -> None:
    answer = driver(mode).ask(280, op="storm")
    assert answer["failures"] == {}
    assert answer["attacks"] >= 45
    assert answer["honest"] >= 10


def test_there_are_enough_attacks() -> None:
    for mode in (*ALL_MODES, DOCKER):
        assert sum(mode in attack.modes for attack in ATTACKS.values()) >= 45
