"""`docker`: every sandbox a container of its own, on a daemon that is local or far away.

    backend.py    containers, handed out first come, first served, some kept warm
    sandbox.py    one container as one episode's world     session.py  its interpreters and shells
    container.py  making, attaching, removing them         seccomp.py  their system-call filter
    link.py       requests to the runner, which is process 1 of the container (../runner.py)
    probes.py     what the daemon offers                   owner.py    whose containers they are

Needs the SDK (`pip install "agentgym-rl[docker]"`) and an image with Python 3.8 or newer.
"""

import importlib.util

from agentgym_rl.errors import SandboxUnavailable

if importlib.util.find_spec("docker") is None:
    raise SandboxUnavailable(
        'the docker backend needs the docker SDK for Python: pip install "agentgym-rl[docker]"'
    )

from .backend import DockerBackend

__all__ = ["DockerBackend"]
