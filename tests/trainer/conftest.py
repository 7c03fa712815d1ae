from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for trainer_samples, which child processes share

from trainer_samples import save_tiny_model

from agentgym_rl.trainer import World, join_world


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several threads that spin on shared cores make tiny models a hundred times slower."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory) -> Path:
    """Of the same vocabulary, with other weights: a reference."""
    return save_tiny_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A world of one rank."""
    with join_world() as world:
        yield world
