"""A local backend whose sandboxes start from images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.sandboxes import Opened, opened


@pytest.fixture(scope="module")
def world() -> Iterator[Opened]:
    with opened("local") as found:
        found.needs("images", "shell")
        yield found
