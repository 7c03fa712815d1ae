"""The Docker backend: it hands out containers in order, keeps some warm, and reuses none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from agentgym_rl import ConfigError, SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.core import ImageError, SandboxStartTimeout
from agentgym_rl.gym import (
    Capabilities,
    Image,
    ImageRecipe,
    Limits,
    ProbeReport,
    SandboxBackend,
    SandboxStats,
)
from arl_sandboxes import runner
from arl_sandboxes.arguments import check_work_dir, checked_mounts, require_sdk
from arl_sandboxes.permits import Permits
from arl_sandboxes.runner_words import RunnerError

from . import owner, sdk, seccomp
from .container import Container, ContainerConfig, Daemon, reap, remove, start
from .images import Images
from .probes import DEFAULT_IMAGE, probe, unreachable
from .sandbox import DockerSandbox

log = logging.getLogger(__name__)

ALIVE_TIMEOUT_S = 2.0
"""The longest time a warm container may take to answer before it is handed out."""
CLOSE_TIMEOUT_S = 30.0
CLOSED = "the docker sandbox backend was closed"
RETRY_S = 1.0
NUM_IMAGES = 4
"""The number of last used images for which containers are kept warm."""


class DockerBackend(SandboxBackend):
    """A container for each sandbox, without network, capabilities or a writable root.

    Args:
        containers: The largest number of sandboxes at once.
        warm: The number of idle containers kept ready, besides those in use.
        limits: The limits of a sandbox, unless `create` gives others; warm ones have these.
        image: An image with Python 3.8 or newer; it is never pulled.
        runtime: A runtime of the daemon ("runsc": gVisor, which bounds processes by memory only);
            "": the daemon's default.
        python: The name or path of the interpreter in the image.
        user: The uid that programs run as; 0: a different one for each container.
        preimport: The modules to load once per container, instead of a default list.
        require: The capabilities without which the backend does not start (("total_memory",)).
        base_url: The address of the daemon; "": DOCKER_HOST, or the usual socket.
        bases: Images of the daemon that stand for base images of Dockerfiles, by the name there
            ({"python:3.11-slim": "arl-sandbox:latest"}).
        pull: True if a base image that the daemon lacks may be pulled.
        mounts: Folders of this machine, which is the daemon's, that programs can read, by their
            path in a sandbox ({"/opt/agents": "~/agents"}), below /opt, /mnt or /srv.
    """

    name = "docker"

    def __init__(
        self,
        *,
        containers: int = 8,
        warm: int = 2,
        limits: Limits | None = None,
        image: str = DEFAULT_IMAGE,
        runtime: str = "",
        python: str = "python3",
        user: int = 0,
        preimport: Sequence[str] | None = None,
        require: Sequence[str] = (),
        base_url: str = "",
        bases: Mapping[str, str] | None = None,
        pull: bool = False,
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        require_sdk("docker")
        if containers < 1 or warm < 0 or user < 0:
            raise ConfigError(
                f"containers {containers}, warm {warm}, user {user}: expected >= 1, >= 0 and >= 0"
            )
        Capabilities().missing(require)  # raises for an unknown name
        self._num_containers = self.at_once = containers
        self._num_warm = warm
        self._limits = limits or Limits()
        self._image, self._runtime, self._python, self._user = image, runtime, python, user
        self._preimport = runner.PREIMPORT if preimport is None else preimport
        self._require, self._base_url = tuple(require), base_url
        self._bases, self._pull = dict(bases or {}), pull
        self._mounts = checked_mounts(mounts)
        self._stats = SandboxStats()
        self._places = Permits(containers, closed=CLOSED)
        self._warm: OrderedDict[str, deque[Container]] = OrderedDict({"": deque()})
        """The idle containers by the key of their image ("": without one), last used last."""
        self._alive: set[Container] = set()
        self._stack: contextlib.AsyncExitStack | None = None
        self._wanted = asyncio.Event()
        """An event that is set when a warm container is missing, or the backend closes."""

    # ------------------------------------------------------------------ life
    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            try:
                daemon = await asyncio.to_thread(Daemon, self._base_url)
            except sdk.CONNECT_ERRORS as error:
                self._check(unreachable(error))
                raise
            stack.callback(daemon.close)
            config = await self._config(daemon)
            report = await probe(daemon, config)
            self._check(report)
            self._daemon, self._container_config = daemon, config
            self._capabilities = report.capabilities
            self._images = Images(daemon, self._bases, pull=self._pull)
            if num_reaped := await reap(daemon):
                log.warning("removed %d containers of processes that are dead", num_reaped)
            stack.push_async_callback(self._remove_all)
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(self._wanted.set)  # the keeper finishes a start, then ends
            self._tasks.create_task(self._keep(), name="container keeper")
            self._wanted.set()
            self._stack = stack.pop_all()
        log.info(
            "docker sandboxes ready: %d at once, %d warm", self._num_containers, self._num_warm
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        self._places.close()
        if stack is not None:
            await stack.aclose()

    async def _remove_all(self) -> None:
        """Remove all containers, including those in use."""
        async with asyncio.TaskGroup() as tasks:
            for container in list(self._alive):
                tasks.create_task(self._dispose(container), name="remove container")

    async def create(
        self,
        *,
        limits: Limits | None = None,
        image: Image | None = None,
        timeout_s: float = 60.0,
    ) -> DockerSandbox:
        self._check_open()
        if image is not None:
            self._images.get(image)
        requested_at = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
                try:
                    container = await self._obtain(limits or self._limits, image)
                except BaseException:
                    self._places.release()
                    raise
        except TimeoutError:
            raise SandboxStartTimeout(
                f"no sandbox was available within {timeout_s:g} s: {self._num_containers} at "
                f"once, {self._stats.in_use} in use, {self._places.waiting} callers waiting"
            ) from None
        waited = time.perf_counter() - requested_at
        self._stats.queue_wait_s += waited
        self._stats.queue_wait_max_s = max(waited, self._stats.queue_wait_max_s)
        self._stats.created += 1
        self._stats.in_use += 1
        return DockerSandbox(
            container, self._capabilities, stats=self._stats, on_close=self._give_back,
            renewed=self._renewed, image=image,
        )  # fmt: skip

    async def prepare(
        self,
        recipe: ImageRecipe,
        *,
        timeout_s: float = 600.0,
        report: Callable[[str], None] | None = None,
    ) -> Image:
        self._check_open()
        image, new = await self._images.prepare(recipe, timeout_s, report or (lambda line: None))
        check_work_dir(recipe.name, image.work_dir, self._mounts)
        if new:
            made = await self._start(self._limits, image)
            if isinstance(made, SandboxError):
                self._images.forget(image)
                raise ImageError(
                    f"{recipe.name}: no container starts from the image, which needs "
                    f"{self._python} (3.8 or newer, with ctypes): {made}"
                ) from made
            self._idle(image).append(made)
        return image

    def _check_open(self) -> None:
        if self._stack is None:
            raise SandboxLost("the docker sandbox backend is not open: use `async with backend:`")

    async def probe(self) -> ProbeReport:
        try:
            daemon = await asyncio.to_thread(Daemon, self._base_url)
        except sdk.CONNECT_ERRORS as error:
            return unreachable(error)
        try:
            return await probe(daemon, await self._config(daemon))
        except SandboxError as error:
            return unreachable(error)
        finally:
            daemon.close()

    def stats(self) -> SandboxStats:
        statuses = dict(self._stats.statuses)
        return replace(self._stats, statuses=statuses, waiting=self._places.waiting)

    def _check(self, report: ProbeReport) -> None:
        if not report.ok:
            raise SandboxUnavailable(f"the docker sandbox cannot work here:\n{report.complaint()}")
        if lacking := report.capabilities.missing(self._require):
            raise SandboxUnavailable(
                f"the docker sandbox lacks what `require` asks for: {', '.join(lacking)} "
                "(`arl doctor sandbox` says why)"
            )

    async def _config(self, daemon: Daemon) -> ContainerConfig:
        info = await daemon.call(daemon.api.info)
        machine = info.get("Architecture")
        return ContainerConfig(
            image=self._image,
            python=self._python,
            runtime=self._runtime,
            user=self._user,
            seccomp=seccomp.profile(machine) if machine in seccomp.ARCHITECTURES else "",
            preimport=tuple(self._preimport),
            labels=owner.labels(uuid.uuid4().hex),
            mounts=self._mounts,
        )

    # ------------------------------------------------------------------ containers
    def _idle(self, image: Image | None) -> deque[Container]:
        """Return the idle containers of an image, and mark it as the last used one."""
        key = image.key if image is not None else ""
        idle = self._warm.setdefault(key, deque())
        self._warm.move_to_end(key)
        while len(self._warm) > NUM_IMAGES + 1:
            oldest = next(each for each in self._warm if each)  # never those without an image
            for container in self._warm.pop(oldest):
                self._tasks.create_task(self._dispose(container), name="remove container")
        return idle

    async def _renewed(self, container: Container, image: Image) -> Container:
        """Return another container of the image, in place of one that is removed.

        Raises:
            SandboxLost: none starts.
        """
        self._check_open()
        await self._dispose(container)
        try:
            return await self._obtain(container.limits, image)
        except SandboxError as error:
            raise SandboxLost(f"the sandbox could not be reset: {error}") from error

    async def _obtain(self, limits: Limits, image: Image | None) -> Container:
        idle = self._idle(image)
        while limits == self._limits and idle:
            container = idle.popleft()
            self._wanted.set()
            if await self._answers(container):
                return container
            self._stats.respawns += 1
        # A separate task: a cancelled caller must not leave a half-started container behind.
        starting = self._tasks.create_task(self._start(limits, image), name="start container")
        try:
            made = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._tasks.create_task(self._discard(starting), name="discard container")
            raise
        if isinstance(made, SandboxError):
            self._stats.lost += 1
            raise made
        return made

    async def _start(self, limits: Limits, image: Image | None) -> Container | SandboxError:
        """Start a container; return an error instead of raising it, which would end the other
        tasks."""
        config = self._container_config
        try:
            if image is not None:
                config = replace(config, world=self._images.get(image))
            container = await start(self._daemon, config, limits)
        except SandboxError as error:
            return error
        self._alive.add(container)
        return container

    async def _answers(self, container: Container) -> bool:
        try:
            await container.client.request("interrupt", session=0, deadline_s=ALIVE_TIMEOUT_S)
        except (SandboxError, RunnerError) as error:
            log.warning("a warm container was dead: %s", error)
            await self._dispose(container)
            return False
        return True

    async def _discard(self, starting: asyncio.Task[Container | SandboxError]) -> None:
        made = await starting
        if isinstance(made, Container):
            await self._dispose(made)

    async def _give_back(self, container: Container) -> None:
        """Remove the container; the removal goes on even if the caller is cancelled."""
        self._stats.in_use -= 1
        if container.client.dead:
            self._stats.lost += 1
        if self._stack is None:
            return  # already removed with the backend
        removing = self._tasks.create_task(self._dispose(container), name="remove container")
        removing.add_done_callback(lambda _: self._places.release())
        await asyncio.shield(removing)

    async def _dispose(self, container: Container) -> None:
        if container not in self._alive:
            return
        self._alive.discard(container)
        container.client.link.drop("closed")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await remove(self._daemon, container.id)
        except (SandboxError, TimeoutError) as error:
            log.error("container %s could not be removed: %s", container.id, error)

    async def _keep(self) -> None:
        """Keep the wanted number of warm containers."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._stack is None:
                return
            while self._stack is not None and (key := self._lacking()) is not None:
                image = self._images.of_key(key).image if key else None
                made = await self._start(self._limits, image)
                if isinstance(made, Container) and key in self._warm:
                    self._warm[key].append(made)
                elif isinstance(made, Container):
                    await self._dispose(made)
                else:
                    log.error("no warm container: %s", made)
                    await asyncio.sleep(RETRY_S)

    def _lacking(self) -> str | None:
        """Return the key of the image that lacks idle containers, the last used first."""
        lacking = (key for key in reversed(self._warm) if len(self._warm[key]) < self._num_warm)
        return next(lacking, None)
