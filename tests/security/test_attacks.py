"""Each attack alone, and in each mode all of them at once with honest episodes in their midst.

Alone, where nothing else explains a delay, it is played in one mode with namespaces and in one
without, in turn, and in every kind of container; with ARL_EXHAUSTIVE=1 in each mode.
"""

from collections.abc import Callable

import attacks  # noqa: F401  fills ATTACKS
import pytest
from arena import ALL_MODES, ATTACKS, DOCKER, LONE_MODES, MODES, Attack
from asking import Driver

from tests.exhaustive import EXHAUSTIVE


def modes_of(attack: Attack, number: int) -> list[str]:
    """Where it is played alone."""
    modes = list(attack.modes)
    for alike in () if EXHAUSTIVE else (MODES, LONE_MODES):
        if possible := [mode for mode in modes if mode in alike]:
            chosen = possible[number % len(possible)]
            modes = [mode for mode in modes if mode == chosen or mode not in alike]
    return modes


EACH = [
    (attack.name, mode)
    for number, attack in enumerate(ATTACKS.values())
    for mode in modes_of(attack, number)
]


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
