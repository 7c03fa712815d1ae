"""The `docker` backend: each sandbox is a container of its own, on a local or remote daemon.

    backend.py    containers, handed out first come, first served, some kept warm
    sandbox.py    one container as one episode's world     session.py  its interpreters and shells
    container.py  making, attaching, removing them         seccomp.py  their system-call filter
    link.py       requests to the runner, which is process 1 of the container (../runner.py)
    probes.py     what the daemon offers                   owner.py    the owners of containers
    sdk.py        the docker SDK (`pip install "agentgym-rl[docker]"`)

Without the SDK imports work, but no backend can be created. The image needs Python 3.8 or newer.
"""

from .backend import DockerBackend

__all__ = ["DockerBackend"]
