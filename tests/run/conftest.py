import pytest

from tests.e2e.forked import share_fork_server
from tests.kit.groups import row

__all__ = ["row"]


@pytest.fixture
def warm(monkeypatch) -> None:
    """A fork server that has made its imports already, for the runs of a test in this process."""
    share_fork_server(monkeypatch)
