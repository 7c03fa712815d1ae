"""A driver per mode: the host side in a process of its own, which the tests ask over a pipe."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for arena and attacks, which drivers share

from asking import Driver, start


@pytest.fixture(scope="session")
def driver() -> Iterator[Callable[[str], Driver]]:
    """Drivers by mode, started when first asked for."""
    drivers: dict[str, Driver] = {}
    impossible: dict[str, BaseException] = {}
    with tempfile.TemporaryDirectory(prefix="arl-security-") as top:
        os.chmod(top, 0o755)

        def get(mode: str) -> Driver:
            if mode in impossible:
                raise impossible[mode]
            if mode not in drivers:
                folder = Path(top) / mode
                folder.mkdir()
                try:
                    drivers[mode] = start(mode, folder)
                except (pytest.skip.Exception, pytest.fail.Exception) as error:
                    impossible[mode] = error
                    raise
            return drivers[mode]

        yield get
        for one in drivers.values():
            one.close()
