from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "trainer"))  # child processes share both

from mesh_models import save_models
from meshes import References


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """The folder of the models of mesh_models.py."""
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def references(tmp_path_factory, models) -> References:
    """What one rank computes."""
    return References(models, tmp_path_factory.mktemp("references"))
