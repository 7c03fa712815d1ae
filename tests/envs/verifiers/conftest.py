"""The Python that has verifiers."""

import os

import pytest
from arl_envs.verifiers import bridge

from tests.exhaustive import REQUIRED


@pytest.fixture
def python() -> str:
    found = os.environ.get(bridge.VARIABLE, "")
    if not found:
        required = "verifiers" in REQUIRED
        (pytest.fail if required else pytest.skip)(
            f"{bridge.VARIABLE} does not name a Python that has verifiers 0.4"
        )
    return found
