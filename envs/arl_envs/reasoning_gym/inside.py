"""The code that runs in the verifier pool, never in the training process: generators are slow, and
scorers may hang on, or execute, their input.

If the package's scorer rewards wrong answers, an answer must also meet conditions here. A test of
every scorer with generic answers found the cases. Without the conditions, "0" is right for every
coin flip, any word for every game of life, and any expression of 24 for puzzle24.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy
import reasoning_gym

from arl_envs.splits import split_of

from .datasets import LARGEST_SEED

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,2})?(?:/[1-9][0-9]{0,19})?")
_TOLERANCE = 1e-4
"""The tolerance of the package."""


def holds(dataset: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Return False if `answer` is known to be wrong, whatever its score is."""
    check = _CHECKS.get(dataset)
    return check is None or check(answer, entry)


def _is_it(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer.casefold() == entry["answer"].casefold()


def _is_near(answer: str, entry: Mapping[str, Any]) -> bool:
    if not _NUMBER.fullmatch(answer) or ("/" in answer and not answer.replace("/", "").isdigit()):
        return False
    return abs(Fraction(answer) - Fraction(entry["answer"])) <= _TOLERANCE


def _uses_the_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    used = map(int, re.findall(r"[0-9]{1,9}", answer))
    return sorted(used) == sorted(entry["metadata"]["numbers"])


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _is_near,
    "game_of_life_halting": _is_it,
    "puzzle24": _uses_the_numbers,
}


MAX_TRIES = 200
"""The number of entries tried for the wanted split, to which each belongs with probability 1/2."""


def entry(dataset: str, config: dict[str, Any], seed: int, split: str) -> list[Any]:
    """Return [seed of the entry, question, answer or None] of `seed`'s first entry in `split`.

    Raises:
        LookupError: the dataset seems to have no question of this split.
    """
    for attempt in range(MAX_TRIES):
        key = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()
        own_seed = int.from_bytes(key, "big") % LARGEST_SEED
        _, found = _generated(dataset, config, own_seed)
        if split_of(found["question"]) == split:
            return [own_seed, found["question"], found["answer"]]
    raise LookupError(f"{dataset} gave no {split} question in {MAX_TRIES} tries: it has too few")


def score(
    dataset: str, config: dict[str, Any], seed: int, question: str, answer: str
) -> list[Any] | None:
    """Return [the score of the package, its exception]; None if the entry is not `question`."""
    made, found = _generated(dataset, config, seed)
    if found["question"] != question:
        return None
    if not holds(dataset, answer, found):
        return [0.0, ""]
    try:
        return [float(made.score_answer(answer, found)), ""]
    except MemoryError:
        raise
    except BaseException as error:  # plain wrong answers make some of them raise
        return [0.0, f"{type(error).__name__}: {error}"[:200]]


def _generated(dataset: str, config: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    random.seed(seed)  # a few generators use these, too
    numpy.random.seed(seed)
    made = reasoning_gym.create_dataset(dataset, **config, seed=seed, size=1)
    return made, made[0]
