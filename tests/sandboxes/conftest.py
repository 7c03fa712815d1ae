"""The fake of E2B, shared by the tests of a module, without faults and machines at each begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from e2b_server import E2BServer


@pytest.fixture(scope="module")
def running() -> Iterator[E2BServer]:
    from e2b_server import E2BServer  # needs the e2b SDK

    with E2BServer() as server:
        yield server


@pytest.fixture
def server(running: E2BServer) -> Iterator[E2BServer]:
    with running.clean():
        yield running
