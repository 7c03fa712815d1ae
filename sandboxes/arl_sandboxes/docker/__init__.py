"""The `docker` backend: each sandbox is a container of its own, on a local or remote daemon.

    backend.py    containers, handed out first come, first served, some kept warm
    sandbox.py    one container as one episode's world     owner.py    the owners of containers
    container.py  making, attaching, removing them         seccomp.py  their system-call filter
    link.py       the streams of the runner, which is process 1 of the container (../runner.py)
    probes.py     what the daemon offers                   sdk.py      the docker SDK

The SDK is installed by the extra `docker`. The requests of a sandbox to its runner
are the same in a container and in a machine: ../runner_sandbox.py, ../runner_session.py and
../runner_client.py.

Without the SDK imports work, but no backend can be created. The image needs Python 3.8 or newer.
"""

from .backend import DockerBackend

__all__ = ["DockerBackend"]
