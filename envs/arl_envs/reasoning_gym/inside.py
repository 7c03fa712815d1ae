"""The code that runs in the verifier pool, never in the training process: generators are slow, and
scorers may hang on, or execute, their input."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import reasoning_gym

from arl_envs.splits import split_of

from .datasets import LARGEST_SEED
from .recheck import holds

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
