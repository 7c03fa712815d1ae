"""The E2B backend: machines are started, handed out in order, and ended after one sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentgym_rl import ConfigError, SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.core import SandboxStartTimeout
from agentgym_rl.gym import (
    Capabilities,
    Image,
    ImageRecipe,
    Limits,
    ProbeReport,
    SandboxBackend,
    SandboxStats,
)
from arl_sandboxes.arguments import require_sdk
from arl_sandboxes.permits import Permits

from . import probes
from .inside import RunnerConfig
from .pace import Pace
from .sandbox import E2BSandbox

if TYPE_CHECKING:
    from arl_sandboxes.images import Prepared

    from .account import Account
    from .machine import Machine

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 15.0
"""The longest time the end of a machine, or of the backend, may take; E2B ends the rest."""
CLOSED = "the e2b sandbox backend was closed"
TRY_OUT_S = 300.0
"""The longest time a sandbox may take to start that shows that a template serves."""
RETRY_S = 5.0
"""The pause between attempts to keep machines ready."""


class E2BBackend(SandboxBackend):
    """Programs in virtual machines of E2B: a machine for each sandbox, never used again.

    Args:
        sandboxes: The largest number at once. E2B allows 20 (Hobby) or 100 (Pro) per account.
        warm: The number of idle machines kept ready; they cost, and count at E2B, as others do.
        limits: The limits of a sandbox, unless `create` gives others.
        template: E2B's name of the machine's image, with Python 3.8 or newer, util-linux,
            tar and bash; it also sets the memory of a machine.
        bases: Templates that stand for base images of Dockerfiles, by the name there
            ({"node:22": "my-node"}); `template` stands for debian, ubuntu and python.
        python: The interpreter of the programs, in the machine.
        internet: If True, programs have the network of the machine; otherwise they have none.
        creates_per_s: The rate of new machines: E2B allows 1 (Hobby) or 5 (Pro) per second.
        lifetime_s: The seconds after which E2B ends a machine that is not renewed. This backend
            renews its own; after a crash of this process they live at most this long.
        call_timeout_s: The longest time for a call to E2B, retries of the SDK included.
        retries: The SDK's retries if the control plane answers 429, 502, 503 or 504.
        api_key: The key; "": the environment variable E2B_API_KEY.
        api_url: Another control plane; `sandbox_url` is another address of the machines.
        require: The capabilities without which it does not start (("network_isolated",)).
    """

    name = "e2b"

    def __init__(
        self,
        *,
        sandboxes: int = 16,
        warm: int = 0,
        limits: Limits | None = None,
        template: str = "base",
        bases: Mapping[str, str] | None = None,
        python: str = "python3",
        internet: bool = False,
        creates_per_s: float = 1.0,
        lifetime_s: int = 300,
        call_timeout_s: float = 30.0,
        retries: int = 3,
        api_key: str = "",
        api_url: str = "",
        sandbox_url: str = "",
        require: Sequence[str] = (),
    ) -> None:
        require_sdk("e2b")
        _check_above_zero(
            sandboxes=sandboxes,
            creates_per_s=creates_per_s,
            lifetime_s=lifetime_s,
            call_timeout_s=call_timeout_s,
        )
        if warm < 0 or retries < 0:
            raise ConfigError(f"warm {warm}, retries {retries}: expected 0 or more")
        Capabilities().missing(require)  # raises for an unknown name
        self._num_sandboxes, self._num_warm = sandboxes, warm
        self._limits = limits or Limits()
        self._internet = internet
        self._plain = RunnerConfig(python, self._limits.disk_mb, internet)
        """The environment of the runner of a warm machine."""
        self._lifetime_s, self._call_timeout_s = lifetime_s, call_timeout_s
        self._template, self._bases, self._retries = template, dict(bases or {}), retries
        self._api_key, self._api_url, self._sandbox_url = api_key, api_url, sandbox_url
        self._require = tuple(require)
        self._stats = SandboxStats()
        self._permits, self._pace = Permits(sandboxes, closed=CLOSED), Pace(creates_per_s)
        self._stack: contextlib.AsyncExitStack | None = None
        self._machines: set[Machine] = set()
        """The machines that are in use, ready, starting or ending."""
        self._warm: deque[Machine] = deque()
        self._starting: set[asyncio.Task[Machine | SandboxError]] = set()
        self._num_unknown = 0
        """The number of machines that E2B may have made without our receiving the answer."""
        self._work = asyncio.Event()
        """An event that is set when the keeper of warm machines has work."""

    # ------------------------------------------------------------------ life
    async def __aenter__(self) -> Self:
        report, account = await self._examine()
        if not report.ok or account is None:
            raise SandboxUnavailable(f"E2B cannot be used:\n{report.complaint()}")
        if lacking := report.capabilities.missing(self._require):
            raise SandboxUnavailable(
                f"the e2b sandbox lacks what `require` asks for: {', '.join(lacking)}"
            )
        from .images import Images

        self._account, self._capabilities = account, report.capabilities
        self._images = Images(account, self._template, self._bases, self._try_out)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            keepers = [
                self._tasks.create_task(self._keep_warm(), name="e2b warm"),
                self._tasks.create_task(self._keep_alive(), name="e2b renew"),
            ]
            stack.callback(self._stop, keepers)
            self._stack = stack.pop_all()
        self._work.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        self._permits.close()
        if stack is not None:
            await stack.aclose()

    def _stop(self, keepers: list[asyncio.Task[None]]) -> None:
        for task in (*keepers, *self._starting):
            task.cancel()
        for machine in self._machines:
            machine.drop(CLOSED)

    async def _end_all(self) -> None:
        """End every machine, including those that E2B made without our receiving the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                await self._kill([machine.id for machine in self._machines])
                self._machines.clear()
                if self._num_unknown:
                    await self._kill(await self._leftovers())

    async def _leftovers(self) -> list[str]:
        try:
            return await self._account.mine()
        except SandboxError as error:
            log.warning("%s; sandboxes left over end within %d s", error, self._lifetime_s)
            return []

    async def _kill(self, ids: list[str]) -> None:
        async with asyncio.TaskGroup() as killing:
            for id in ids:
                killing.create_task(self._kill_one(id), name=f"kill {id}")

    async def _kill_one(self, id: str) -> None:
        try:
            await self._account.kill(id, timeout_s=CLOSE_TIMEOUT_S)
        except SandboxError as error:
            log.warning("%s; it ends by itself within %d s", error, self._lifetime_s)

    async def _examine(self) -> tuple[ProbeReport, Account | None]:
        api_key = self._api_key or os.environ.get("E2B_API_KEY", "")
        account = None
        if probes.sdk().ok and api_key:
            from .account import Account

            account = Account(
                api_key=api_key,
                internet=self._internet,
                lifetime_s=self._lifetime_s,
                call_timeout_s=self._call_timeout_s,
                retries=self._retries,
                api_url=self._api_url,
                sandbox_url=self._sandbox_url,
            )
        return await probes.report(account, api_key, self._internet), account

    async def probe(self) -> ProbeReport:
        report, _ = await self._examine()
        return report

    def stats(self) -> SandboxStats:
        statuses = dict(self._stats.statuses)
        return replace(self._stats, statuses=statuses, waiting=self._permits.waiting)

    # ------------------------------------------------------------------ handing out
    async def create(
        self,
        *,
        limits: Limits | None = None,
        image: Image | None = None,
        timeout_s: float = 60.0,
    ) -> E2BSandbox:
        self._check_open()
        world = self._images.get(image) if image is not None else None
        return await self._create(limits or self._limits, world, timeout_s)

    async def prepare(
        self,
        recipe: ImageRecipe,
        *,
        timeout_s: float = 600.0,
        report: Callable[[str], None] | None = None,
    ) -> Image:
        self._check_open()
        image, _ = await self._images.prepare(recipe, timeout_s, report or (lambda line: None))
        return image

    def _check_open(self) -> None:
        if self._stack is None:
            raise SandboxLost("the e2b sandbox backend is not open: use `async with backend:`")

    async def _try_out(self, world: Prepared) -> None:
        await (await self._create(self._limits, world, TRY_OUT_S)).close()

    async def _create(self, limits: Limits, world: Prepared | None, timeout_s: float) -> E2BSandbox:
        config = replace(self._plain, disk_mb=limits.disk_mb, world=world)
        requested_at = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await self._permits.acquire()
                machine = await self._obtain(config)
        except TimeoutError:
            raise SandboxStartTimeout(
                f"no sandbox was available within {timeout_s:g} s: at most {self._num_sandboxes} "
                f"at once, {self._stats.in_use} in use, {len(self._starting)} starting, "
                f"{self._permits.waiting} callers waiting"
            ) from None
        waited = time.perf_counter() - requested_at
        self._stats.queue_wait_s += waited
        self._stats.queue_wait_max_s = max(waited, self._stats.queue_wait_max_s)
        self._stats.created += 1
        self._stats.in_use += 1
        return E2BSandbox(
            machine,
            limits,
            self._capabilities,
            stats=self._stats,
            on_close=lambda: self._take_back(machine),
            image=world.image if world is not None else None,
        )

    async def _obtain(self, config: RunnerConfig) -> Machine:
        """Return a ready machine, or a new one; release the permit if there is neither."""
        while self._warm and self._template_of(config) == self._template:
            machine = self._warm.popleft()
            self._work.set()
            if not machine.dead:
                return await self._with_runner(machine, config)
            self._bury(machine)
        try:
            await self._pace.turn()
        except asyncio.CancelledError:
            self._permits.release()
            raise
        if self._stack is None:
            raise SandboxLost(CLOSED)
        start = self._tasks.create_task(self._start(config), name="start a machine")
        self._starting.add(start)
        start.add_done_callback(self._starting.discard)
        return await self._claim(start)

    def _template_of(self, config: RunnerConfig) -> str:
        return config.world.image.place if config.world is not None else self._template

    async def _with_runner(self, machine: Machine, config: RunnerConfig) -> Machine:
        """Return a warm machine whose runner has this environment, or release the permit."""
        try:
            if machine.config != config:
                await machine.start_runner(config)
        except BaseException:
            self._permits.release()
            if machine in self._machines:
                self._bury(machine)
            raise
        return machine

    async def _claim(self, start: asyncio.Task[Machine | SandboxError]) -> Machine:
        """Return the started machine. The start outlives the caller: E2B would keep its machine."""
        task = asyncio.current_task()
        assert task is not None
        try:
            found = await asyncio.shield(start)
        except asyncio.CancelledError:
            if start.cancelled() and not task.cancelling():
                raise SandboxLost(CLOSED) from None
            start.add_done_callback(self._unclaimed)
            raise
        if isinstance(found, SandboxError):
            self._permits.release()
            raise found
        return found

    def _unclaimed(self, start: asyncio.Task[Machine | SandboxError]) -> None:
        """Keep or end a machine that started after its caller had gone."""
        self._permits.release()
        machine = None if start.cancelled() else start.result()
        if machine is None or isinstance(machine, SandboxError):
            return
        if len(self._warm) < self._num_warm and machine.config == self._plain:
            self._keep(machine)
        else:
            self._bury(machine)

    async def _take_back(self, machine: Machine) -> None:
        """End the machine of a closed sandbox, even if the caller is cancelled."""
        self._stats.in_use -= 1
        if machine.dead and self._stack is not None:
            self._stats.lost += 1
        if machine in self._machines:
            await asyncio.shield(self._bury(machine, used=True))

    def _bury(self, machine: Machine, *, used: bool = False) -> asyncio.Task[None]:
        async def bury() -> None:
            machine.drop("it was closed")
            await self._kill_one(machine.id)
            self._machines.discard(machine)
            if used:
                self._permits.release()

        return self._tasks.create_task(bury(), name=f"end {machine.id}")

    # ------------------------------------------------------------------ machines
    async def _start(self, config: RunnerConfig) -> Machine | SandboxError:
        """Start a machine with its runner; return the error if it fails."""
        from .machine import Machine

        machine = None
        try:
            self._num_unknown += 1
            sdk = await self._account.create(self._template_of(config))
            self._num_unknown -= 1
            machine = Machine(sdk, self._tasks, self._call_timeout_s)
            self._machines.add(machine)
            await machine.start_runner(config)
        except SandboxError as error:
            if machine is not None:
                self._bury(machine)
            return error
        return machine

    async def _keep_warm(self) -> None:
        """Keep `warm` machines ready, and replace dead ones."""
        while True:
            await self._work.wait()
            self._work.clear()
            for machine in [machine for machine in self._warm if machine.dead]:
                self._warm.remove(machine)
                self._bury(machine)
                self._stats.respawns += 1
            while len(self._warm) < self._num_warm:
                await self._pace.turn()
                machine = await self._start(self._plain)
                if isinstance(machine, SandboxError):
                    log.error("no machine could be kept ready: %s", machine)
                    await asyncio.sleep(RETRY_S)
                    continue
                self._keep(machine)

    def _keep(self, machine: Machine) -> None:
        """Keep a machine ready for use; its death wakes the keeper."""
        machine.on_end = lambda why: self._work.set()
        self._warm.append(machine)

    async def _keep_alive(self) -> None:
        """Renew machines long before E2B ends them."""
        while True:
            await asyncio.sleep(self._lifetime_s / 3)
            async with asyncio.TaskGroup() as renewing:
                for machine in [machine for machine in self._machines if not machine.dead]:
                    renewing.create_task(self._renew(machine), name=f"renew {machine.id}")

    async def _renew(self, machine: Machine) -> None:
        try:
            await self._account.renew(machine.id)
        except SandboxError as error:
            log.warning("%s", error)


def _check_above_zero(**options: float) -> None:
    for name, value in options.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; expected above 0")
