import pytest

from tests.e2e.forked import share_fork_server


@pytest.fixture
def warm(monkeypatch) -> None:
    """A fork server that has made its imports already, for the runs of a test in this process."""
    share_fork_server(monkeypatch)
