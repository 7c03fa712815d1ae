"""Each sandbox backend for a file of tests, and one sandbox of it for the cases of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.sandboxes import EACH, OneSandbox, Opened, opened


@pytest.fixture(scope="module", params=EACH)
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        yield found


@pytest.fixture
def one(world: Opened) -> Iterator[OneSandbox]:
    sandbox = world.run(world.backend.create())
    yield OneSandbox(world, sandbox)
    world.run(sandbox.close())
