"""The witness of a run of pytest, the conftest in /tests of a converted task: it tells the judge
how the run ended.

Programs under test run in the same process. One that prints results and ends the process cannot
say this, since it has not the key of which the judge got the hash before it was imported.
"""

import hashlib
import os
import socket

VARIABLE = "ARL_WITNESS"
"""The variable with the path of the judge's socket; unset in other runners."""


def pytest_configure(config):  # pyright: ignore[reportMissingParameterType]
    """Commit to a key, and have it told with the exit status when the run is over."""
    path = os.environ.get(VARIABLE)
    if not path or hasattr(config, "workerinput"):  # a worker of pytest-xdist: its parent tells
        return
    key = os.urandom(32)
    judge = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    judge.settimeout(10)
    judge.connect(path)
    judge.sendall(hashlib.blake2b(key, digest_size=32).digest())

    class Witness:
        """The plugin with the hook at the end: pytest calls those that came first last."""

        def pytest_sessionfinish(self, session, exitstatus):  # pyright: ignore[reportMissingParameterType]
            """Reveal the key."""
            judge.sendall(key + bytes([int(exitstatus) & 255]))
            judge.close()

    config.pluginmanager.register(Witness())
