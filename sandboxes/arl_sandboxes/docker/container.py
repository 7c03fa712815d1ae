"""The life of one container: created locked down, attached, removed; blocking calls in threads."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import WORK_DIR, Limits
from arl_sandboxes import runner
from arl_sandboxes.arguments import PYTHON_OPTIONS
from arl_sandboxes.images import Prepared
from arl_sandboxes.ports import Ports
from arl_sandboxes.runner_client import Client

from . import owner, sdk
from .link import connect

T = TypeVar("T")

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
CALL_TIMEOUT_S = 60.0
"""The longest time one call of the daemon may take."""
START_TIMEOUT_S = 30.0
REMOVE_TIMEOUT_S = 20.0
"""The longest time that refused removals of a container are repeated."""
OVERHEAD_MB = 48
"""The memory for the runner, and for the part of it that a program copies before it begins."""
RUNTIME_MB, RUNTIME_PROCESSES = 128, 256
"""The additional memory and processes for a runtime that runs its own kernel (gVisor)."""
SCRATCH = ("/tmp", "/dev/shm")
"""The in-memory file systems that programs may write to, besides the work folder."""
ROOTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""The capabilities of root in an image: over its own files, users and processes."""
_THREADS = 16
_FIRST_USER, _NUM_USERS = 300_000, 100_000


@dataclass(frozen=True)
class ContainerConfig:
    """The settings that all containers of a backend share."""

    image: str
    python: str
    runtime: str
    user: int
    """The uid of programs; 0: one per container, so that the kernel can count its processes."""
    seccomp: str
    preimport: Sequence[str]
    labels: Mapping[str, str]
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The daemon's folders that programs can read, by their path in a sandbox."""
    world: Prepared | None = None
    """The image whose files a sandbox owns altogether; None: it gets an empty work folder."""


class Daemon:
    """The SDK's client, kept off the event loop.

    Raises (on creation):
        sdk.CONNECT_ERRORS: the address is invalid, or no daemon answers there.
    """

    def __init__(self, base_url: str = "") -> None:
        address = base_url or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
        _try_socket(address)
        options = {"timeout": CALL_TIMEOUT_S, "max_pool_size": _THREADS, "version": "auto"}
        if base_url:
            self.api = sdk.docker.APIClient(base_url, **options)
        else:
            self.api = sdk.docker.from_env(**options).api
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make one blocking call. A cancelled caller still waits for it, since the thread goes on.

        Raises:
            SandboxError: the daemon refused.
            SandboxLost: the daemon is gone, or takes too long.
        """
        return await self.call_for(CALL_TIMEOUT_S + 5, function, *args, **kwargs)

    async def call_for(
        self, timeout_s: float, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Make a call that ends by itself after the given time; see `call`."""
        loop = asyncio.get_running_loop()
        calling = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await asyncio.shield(calling)
                except asyncio.CancelledError:
                    await asyncio.wait([calling])
                    if isinstance(made := _outcome(calling), socket.socket):
                        made.close()
                    raise
        except sdk.errors.DockerException as error:
            raise SandboxError(f"the docker daemon refused: {error}") from error
        except (sdk.RequestException, OSError, TimeoutError) as error:
            raise SandboxLost(f"the docker daemon does not answer: {error}") from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.api.close()


def _outcome(calling: asyncio.Future[T]) -> T | None:
    """Return the result of a finished call; None if it failed."""
    return None if calling.cancelled() or calling.exception() else calling.result()


def _try_socket(address: str) -> None:
    """Check that a daemon listens, as the SDK reports less then, and leaves sockets open.

    Raises:
        OSError: no daemon listens; the message names the address.
    """
    if not address.startswith("unix://"):
        return
    path = address.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except OSError as error:
            raise OSError(
                error.errno, f"no server answers at {address}: {error.strerror}"
            ) from None


class Container:
    """A running container made by `start`; `client` talks to its runner."""

    def __init__(self, id: str, client: Client, limits: Limits, *, counts_processes: bool) -> None:
        self.id = id
        self.client = client
        self.ports = Ports(client)
        self.limits = limits
        self.counts_processes = counts_processes
        """True if the kernel can count the processes of its user."""


async def start(daemon: Daemon, config: ContainerConfig, limits: Limits) -> Container:
    """Start a container, and wait until its runner has answered.

    Raises:
        SandboxError: it did not start; the message is from the daemon or the runner.
    """
    name = f"agentgym-rl-{uuid.uuid4().hex[:16]}"
    try:
        sock = await daemon.call(_create_and_attach, daemon.api, name, config, limits)
        client = await connect(sock, name)
        try:
            await client.hello(START_TIMEOUT_S)
        except BaseException:
            client.link.drop("it did not start")
            raise
    except BaseException:
        await asyncio.shield(remove(daemon, name))
        raise
    counts = not config.user and config.world is None  # the kernel does not count root's
    return Container(name, client, limits, counts_processes=counts)


async def remove(daemon: Daemon, name: str) -> None:
    """Kill and remove a container with its volumes; do nothing if it is gone already.

    The daemon also removes a container whose process ends. Where two removals meet, one may fail
    with 409, or with 500 ("directory not empty"), which leaves a dead container: so both repeat.

    Raises:
        SandboxError: the daemon could not do it within REMOVE_TIMEOUT_S, or is gone itself.
    """

    def call() -> Exception | None:
        try:
            daemon.api.remove_container(name, force=True, v=True)
        except sdk.errors.NotFound:
            return None
        except sdk.errors.APIError as error:
            if error.status_code != 409 and not error.is_server_error():
                raise
            return error
        return None

    until, pause_s = time.monotonic() + REMOVE_TIMEOUT_S, 0.02
    while error := await daemon.call(call):
        if time.monotonic() + pause_s > until:
            raise SandboxError(f"the docker daemon refused: {error}") from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)


async def reap(daemon: Daemon) -> int:
    """Remove the containers of processes that are dead; return their number."""
    wanted = {"label": owner.LABEL}
    found = await daemon.call(daemon.api.containers, all=True, filters=wanted)
    orphans = [each["Id"] for each in found if owner.is_orphan(each.get("Labels") or {})]
    for id in orphans:
        await remove(daemon, id)
    return len(orphans)


def _create_and_attach(
    api: sdk.docker.APIClient, name: str, config: ContainerConfig, limits: Limits
) -> socket.socket:
    """Create a container, attach, then start it: no output is lost, and one thread does it all.

    The programs of an image own its files, root's files included.
    """
    command = [config.python, *PYTHON_OPTIONS, "-c", runner.source()]
    command += ["--own-pid-namespace", "--preimport", ",".join(config.preimport)]
    world, uid = config.world, None
    settings: dict[str, Any]
    if world is None:
        uid = config.user or random.randrange(_FIRST_USER, _FIRST_USER + _NUM_USERS)
        command += ["--scratch", ",".join(SCRATCH)]
        settings = {"image": config.image, "user": f"{uid}:{uid}", "working_dir": WORK_DIR}
    else:
        image = world.image
        command += ["--image", "--work", image.work_dir]
        settings = {
            "image": image.place,
            "user": world.user or "0:0",
            "working_dir": image.work_dir,
            "environment": dict(image.env),
            "healthcheck": {"test": ["NONE"]},
        }
    api.create_container(
        command=command,
        entrypoint=[],
        name=name,
        hostname="sandbox",  # instead of the container's id
        stdin_open=True,
        network_disabled=True,
        labels=dict(config.labels),
        host_config=_host_config(api, config, limits, uid),
        **settings,
    )
    if world is not None and world.archive:
        api.put_archive(name, "/", world.archive)
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    attached = api.attach_socket(name, params=params)
    # The SDK wraps the socket; a detached descriptor is closed by its new owner only.
    sock = socket.socket(fileno=getattr(attached, "_sock", attached).detach())
    try:
        api.start(name)
    except BaseException:
        sock.close()
        raise
    return sock


def _host_config(
    api: sdk.docker.APIClient, config: ContainerConfig, limits: Limits, user: int | None
) -> dict[str, Any]:
    """Return the locked-down settings; `user` None: those of an image whose root can be written."""
    # Three file systems, each with its share, as docker cannot mount one at three places.
    total_kb = limits.disk_mb << 10
    tmp_kb, shm_kb = total_kb * 3 // 16, total_kb // 16
    box_kb = total_kb - tmp_kb - shm_kb
    mount = f"exec,mode=700,uid={user},gid={user},nosuid,nodev"
    memory_mb = limits.memory_mb + limits.disk_mb + OVERHEAD_MB  # files are memory
    processes = limits.processes + 4  # the runner, its fork server, and two that are being forked
    if config.runtime:
        memory_mb, processes = memory_mb + RUNTIME_MB, processes + RUNTIME_PROCESSES
    files = max(1024, limits.open_files)
    return api.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=[] if user is not None else list(ROOTS),
        cgroupns="private",
        ipc_mode="private",
        log_config={"type": "none"},  # the runner's output is no log
        mem_limit=memory_mb << 20,
        memswap_limit=memory_mb << 20,
        mounts=[
            {"Type": "bind", "Source": source, "Target": to, "ReadOnly": True}
            for to, source in config.mounts.items()
        ],
        network_mode="none",
        pids_limit=processes,
        privileged=False,
        read_only=user is not None,
        runtime=config.runtime or None,
        security_opt=["no-new-privileges", f"seccomp={config.seccomp}"],
        shm_size=shm_kb << 10,
        tmpfs={}
        if user is None
        else {
            WORK_DIR: f"size={box_kb}k,nr_inodes={64 * limits.disk_mb},{mount}",
            "/tmp": f"size={tmp_kb}k,nr_inodes={16 * limits.disk_mb},{mount}",
        },
        ulimits=[
            {"Name": "nofile", "Soft": files, "Hard": files},
            # 1 and not 0: with 0 the kernel still starts a program that core_pattern names.
            {"Name": "core", "Soft": 1, "Hard": 1},
        ],
    )
