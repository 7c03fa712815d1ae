"""The local backend within a container: what a container refuses, and what it is told to allow."""

from __future__ import annotations

import json
from pathlib import Path

import docker
import pytest
from arl_sandboxes.docker.probes import DEFAULT_IMAGE

from .docker_daemon import require_daemon

ROOT = Path(__file__).parents[2]
USERS = ["0", "1000"]
OPEN = ["seccomp=unconfined", "systempaths=unconfined"]
"""What the refusal says to add."""
PROGRAM = """
import asyncio, json, sys
sys.path[:0] = ["/repository", "/repository/sandboxes"]
from agentgym_rl.core.errors import SandboxUnavailable
from arl_sandboxes.local import LocalBackend

async def main():
    try:
        async with LocalBackend(slots=1, isolation=sys.argv[1]) as backend:
            async with await backend.create() as sandbox:
                outside = await sandbox.run_python("open('/repository/README.md')")
                session = await sandbox.open_session()
                cell = await session.run("x = 6\\nx * 7")
                return {"outside": outside.stderr_text[-99:], "cell": cell.stdout_text}
    except SandboxUnavailable as error:
        return {"refused": str(error)}

print(json.dumps(asyncio.run(main())))
"""


@pytest.fixture(scope="module")
def client():
    require_daemon()
    found = docker.from_env()
    yield found
    found.close()


def inside(
    client: docker.DockerClient, isolation: str, user: str, *, allowed: bool = False
) -> dict[str, str]:
    """What becomes of a sandbox of the local backend in a container with docker's defaults."""
    api = client.api
    host = api.create_host_config(
        binds={str(ROOT): {"bind": "/repository", "mode": "ro"}}, network_mode="none",
        tmpfs={"/tmp": ""}, security_opt=["seccomp=unconfined"] if allowed else [],
    )  # fmt: skip
    if allowed:  # what the command line makes of systempaths=unconfined
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    command = ["python3", "-c", PROGRAM, isolation]
    made = api.create_container(DEFAULT_IMAGE, command, user=user, host_config=host)
    try:
        api.start(made)
        status = api.wait(made, timeout=60)["StatusCode"]
        assert status == 0, api.logs(made).decode()
        return json.loads(api.logs(made, stderr=False).splitlines()[-1])
    finally:
        api.remove_container(made, force=True)


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_a_docker_container_refuses_namespaces_and_is_told_what_to_do(client, user):
    said = inside(client, "namespaces", user)["refused"]
    for words in (*OPEN, 'isolation="landlock"'):
        assert words in said


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_landlock_works_in_a_docker_container(client, user):
    said = inside(client, "landlock", user)
    assert said["cell"] == "42\n"
    assert "PermissionError" in said["outside"]


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_namespaces_work_in_a_docker_container_that_allows_them(client, user):
    said = inside(client, "namespaces", user, allowed=True)
    assert said["cell"] == "42\n"
    assert "FileNotFoundError" in said["outside"]
