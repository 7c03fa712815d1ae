"""Each attack alone, and in each mode all of them at once with honest episodes in their midst.

Alone, where nothing else explains a delay, it is played in one mode with namespaces and in one
without, in turn, and in every kind of container; with ARL_EXHAUSTIVE=1 in each mode.
`ARL_CASE=TEXT` plays those that have the text in their name.
"""

from collections.abc import Callable

import attacks  # noqa: F401  fills ATTACKS
import pytest
from arena import (
    ALL_MODES,
    ATTACKS,
    CONTAINER_MODES,
    DOCKER,
    IMAGE_MODES,
    LANDLOCK_MODES,
    MODES,
    Attack,
)
from asking import Driver

from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER
from tests.kit.cases import chosen

CONTAINERS = CONTAINER_MODES if WITH_DOCKER else ()


def modes_of(attack: Attack, number: int) -> list[str]:
    """Where it is played alone."""
    modes = list(attack.modes)
    for alike in () if EXHAUSTIVE else (MODES, IMAGE_MODES, LANDLOCK_MODES):
        if possible := [mode for mode in modes if mode in alike]:
            chosen = possible[number % len(possible)]
            modes = [mode for mode in modes if mode == chosen or mode not in alike]
    return modes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [*ALL_MODES, *CONTAINERS])
def test_each_attack_is_contained(
    mode: str, driver: Callable[[str], Driver], subtests: pytest.Subtests
) -> None:
    numbered = enumerate(ATTACKS.items())
    names = chosen(name for number, (name, a) in numbered if mode in modes_of(a, number))
    asked = driver(mode)
    for name in names:
        try:
            asked.ask(90, op="attack", name=name)
        except AssertionError as error:
            with subtests.test(name):
                raise error
        except BaseException as error:  # there is no driver any more for the others
            error.add_note(f"in the attack {name}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*ALL_MODES, *CONTAINERS[:1]])
def test_all_attacks_at_once_are_contained(mode: str, driver: Callable[[str], Driver]) -> None:
    answer = driver(mode).ask(280, op="storm")
    assert answer["failures"] == {}
    assert answer["attacks"] >= 45
    assert answer["honest"] >= 10


def test_every_attack_is_played_and_there_are_enough() -> None:
    for number, attack in enumerate(ATTACKS.values()):
        assert {*modes_of(attack, number)} & {*ALL_MODES, *CONTAINER_MODES}, attack.name
    for mode in (*ALL_MODES, DOCKER):
        assert sum(mode in attack.modes for attack in ATTACKS.values()) >= 45
