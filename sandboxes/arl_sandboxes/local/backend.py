"""The local backend: it hands out slots in order, and reuses them once they are clean."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from agentgym_rl import ConfigError, SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.core import SandboxStartTimeout
from agentgym_rl.core.errors import leaves
from agentgym_rl.gym import (
    Capabilities,
    Image,
    ImageRecipe,
    Limits,
    ProbeReport,
    SandboxBackend,
    SandboxStats,
)
from agentgym_rl.runtime import Repeated
from agentgym_rl.runtime.frozen import LOOK_EVERY_S
from arl_sandboxes.arguments import check_work_dir, checked_mounts
from arl_sandboxes.images import checked_bases

from . import cgroup
from .images import Images
from .interpreter import SlotConfig, slot_config
from .probes import probe
from .processes import ended
from .sandbox import LocalSandbox
from .slot import Slot

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.005, 1.0
"""The shortest and longest pause between checks of a dying slot, or replacement attempts."""
_count = itertools.count()


class LocalBackend(SandboxBackend):
    """Programs in namespaces of their own on this machine; Linux, as root or not.

    Args:
        slots: The largest number of sandboxes at once; 0: twice the processors, at least 4.
        limits: The limits of a sandbox, unless `create` gives others.
        python: The interpreter of the programs; "": the host's, without its packages.
        packages: Installed packages that programs may import (("numpy",)); loaded once per slot.
        preimport: The modules to load once per slot, instead of a default list.
        require: The capabilities without which the backend does not start (("total_memory",)).
        cgroup: "auto" bounds the memory of each sandbox in total, if the machine permits it.
        max_executions: The number of programs after which a slot is replaced, so that address
            layout and hash seed do not stay the same forever.
        isolation: "landlock" is for machines that refuse namespaces, such as a container without
            privileges: Python programs and Python sessions only, by Landlock, a system-call filter
            and limits; no `exec`, no shell, no forks, no threads, no bound on the disk. Never
            chosen automatically.
        image_cache: The folder of prepared images; "": agentgym-rl/images in the user's cache.
        image_cache_mb: The size above which images that nobody uses are removed from it.
        bases: Base images for which this machine stands besides debian, python and ubuntu, each
            with the one of these that it is like ({"node:22": "debian"}): its own programs and
            variables are not there.
        mounts: Folders of this machine that programs can read, by their path in a sandbox
            ({"/opt/agents": "~/agents"}), below /opt, /mnt or /srv.
    """

    name = "local"

    def __init__(
        self,
        *,
        slots: int = 0,
        limits: Limits | None = None,
        python: str = "",
        packages: Sequence[str] = (),
        preimport: Sequence[str] | None = None,
        require: Sequence[str] = (),
        cgroup: Literal["auto", "off"] = "auto",
        max_executions: int = 10_000,
        isolation: Literal["namespaces", "landlock"] = "namespaces",
        image_cache: str = "",
        image_cache_mb: int = 4096,
        bases: Mapping[str, str] | None = None,
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        if slots < 0 or max_executions < 1 or image_cache_mb < 1:
            got = f"slots {slots}, max_executions {max_executions}, image_cache_mb {image_cache_mb}"
            raise ConfigError(f"{got}: expected >= 0, >= 1 and >= 1")
        if cgroup not in ("auto", "off"):
            raise ConfigError(f"cgroup {cgroup!r}: expected 'auto' or 'off'")
        if isolation not in ("namespaces", "landlock"):
            raise ConfigError(f"isolation {isolation!r}: expected 'namespaces' or 'landlock'")
        if mounts and isolation == "landlock":
            raise ConfigError("mounts: isolation 'landlock' has none; use 'namespaces', or docker")
        try:
            Capabilities().missing(require)
        except ValueError as error:
            raise ConfigError(f"require: {error}") from error
        self._num_slots = self.at_once = slots or max(4, 2 * (os.cpu_count() or 1))
        self._limits = limits or Limits()
        self._python, self._packages, self._preimport = python, packages, preimport
        self._require = tuple(require)
        self._cgroup = cgroup
        self._isolation = isolation
        self._max_executions = max_executions
        self._image_cache = (image_cache, image_cache_mb)
        self._bases = checked_bases(bases)
        self._mounts = checked_mounts(mounts)
        self._stats = SandboxStats()
        self._free: deque[Slot] = deque()
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._warnings = Repeated(log)
        self._slots: set[Slot] = set()
        self._dying: set[Slot] = set()
        self._stack: contextlib.AsyncExitStack | None = None
        self._indices: list[int] = []
        """The free indices, for slots to be started."""
        self._open: set[LocalSandbox] = set()
        self._closing = False
        self._prefix = f"arl-{os.getpid()}-{next(_count)}"
        self._work = asyncio.Event()
        """An event that is set when the keeper has work."""

    # ------------------------------------------------------------------ life
    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise SandboxError("the local sandbox backend is open already")
        report, self._config, self._groups = await self._examine()
        if not report.ok:
            raise SandboxUnavailable(
                "the local sandbox cannot isolate programs on this machine:\n"
                f"{report.complaint()}\n"
                f"(or use {self._others()}; `arl doctor sandbox` shows every probe)"
            )
        if lacking := report.capabilities.missing(self._require):
            raise SandboxUnavailable(
                f"the local sandbox lacks what `require` asks for: {', '.join(lacking)} "
                "(`arl doctor sandbox` says why)"
            )
        self._capabilities = report.capabilities
        self._images = Images(
            self._config, self._groups, self._capabilities, self._prefix, *self._image_cache,
            self._bases,
        )  # fmt: skip
        self._indices = list(range(self._num_slots))
        self._closing = False
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._close_all)
            try:
                await self._start_slots()
            except (SandboxLost, OSError) as error:
                raise SandboxUnavailable(f"the sandbox slots could not start: {error}") from error
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for part in (self._keep, self._watch, self._images.keep):
                keeper = tasks.create_task(part(), name=f"sandboxes: {part.__name__}")
                stack.callback(keeper.cancel)
            self._stack = stack.pop_all()
        log.info("%d sandbox slots ready", self._num_slots)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def _close_all(self) -> None:
        """Fail waiting callers, close all sandboxes and slots, then re-raise a cancellation."""
        self._closing = True
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(SandboxLost("the local sandbox backend was closed"))
        for slot in list(self._slots):
            slot.close("the backend was closed")
        for sandbox in list(self._open):
            await sandbox.close()
        try:
            await self._images.close()
            await ended(self._bury)
            if self._groups is not None:
                self._groups.sweep()  # again: killed processes may just have ended
        finally:
            if self._dying:
                log.error("%d sandbox slots did not end", len(self._dying))
                self._dying.clear()

    async def create(
        self,
        *,
        limits: Limits | None = None,
        image: Image | None = None,
        timeout_s: float = 60.0,
    ) -> LocalSandbox:
        self._check_open()
        limits = limits or self._limits
        slot = await self._acquire(limits, timeout_s)
        place = slot
        if image is not None:
            # The slot in turn stays unused: it only counts among the most sandboxes at once.
            try:
                place = await self._images.start(image, limits)
            except BaseException:
                self._stats.in_use -= 1
                self._recycle(slot)
                raise
        self._stats.created += 1
        sandbox = LocalSandbox(
            f"{self._prefix}-{self._stats.created}",
            place,
            limits,
            self._capabilities,
            stats=self._stats,
            on_close=lambda sandbox: self._give_back(sandbox, slot),
            renewed=self._renewed,
            image=image,
        )
        self._open.add(sandbox)
        return sandbox

    async def prepare(
        self,
        recipe: ImageRecipe,
        *,
        timeout_s: float = 600.0,
        report: Callable[[str], None] | None = None,
    ) -> Image:
        self._check_open()
        image = await self._images.prepare(recipe, timeout_s, report)
        check_work_dir(recipe.name, image.work_dir, self._mounts)
        return image

    def _check_open(self) -> None:
        if self._stack is None:
            raise SandboxLost("the local sandbox backend is not open: use `async with backend:`")

    async def probe(self) -> ProbeReport:
        report, _, _ = await self._examine()
        return report

    def stats(self) -> SandboxStats:
        self._stats.waiting = len(self._waiting)
        return replace(self._stats, statuses=dict(self._stats.statuses))

    def _others(self) -> str:
        others = "another backend: docker, e2b"
        if self._isolation == "landlock":
            return others
        return f'{others}; or, for Python programs only, isolation="landlock"'

    async def _examine(self) -> tuple[ProbeReport, SlotConfig, cgroup.Hierarchy | None]:
        config = await asyncio.to_thread(
            slot_config, self._python, self._packages, self._preimport, self._isolation,
            self._mounts,
        )  # fmt: skip
        groups, words = await asyncio.to_thread(
            cgroup.wanted, self._cgroup, f"{self._prefix}-probe"
        )
        return await probe(config, groups, words), config, groups

    # ------------------------------------------------------------------ in and out
    async def _acquire(self, limits: Limits, timeout_s: float) -> Slot:
        """Return a slot that has these limits, and count it as in use."""
        deadline = time.monotonic() + timeout_s
        while True:
            requested_at = time.perf_counter()
            try:
                slot = self._take() or await self._queue(deadline, timeout_s)
            finally:
                waited_s = time.perf_counter() - requested_at
                self._stats.queue_wait_s += waited_s
                self._stats.queue_wait_max_s = max(waited_s, self._stats.queue_wait_max_s)
            self._stats.in_use += 1
            try:
                await self._fit(slot, limits)
                if not slot.dead:
                    return slot
                self._stats.in_use -= 1
            except BaseException as error:
                self._stats.in_use -= 1
                self._recycle(slot)
                if not isinstance(error, SandboxLost) or self._closing:
                    raise
            log.warning("a sandbox slot died before it was used: %s", slot.dead)

    def _take(self) -> Slot | None:
        """Take a free slot, if possible with its next process ready. Nobody waits if one is free.

        Among several ready slots it takes the last used one, which is in the processors' caches.
        """
        if not self._free:
            return None
        ready = (slot for slot in reversed(self._free) if slot.child is not None)
        slot = next(ready, self._free[0])
        self._free.remove(slot)
        return slot

    async def _queue(self, deadline: float, timeout_s: float) -> Slot:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Slot] = loop.create_future()
        self._waiting.append(waiter)
        left_s = max(0.0, deadline - time.monotonic())
        alarm = loop.call_later(left_s, self._too_late, waiter, timeout_s)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())  # its caller was cancelled
            raise
        finally:
            alarm.cancel()

    def _too_late(self, waiter: asyncio.Future[Slot], timeout_s: float) -> None:
        if waiter.done():
            return
        waiter.set_exception(
            SandboxStartTimeout(
                f"no sandbox was free within {timeout_s:g} s: {self._stats.in_use} of "
                f"{self._num_slots} slots in use, {len(self._waiting)} callers waiting; "
                "close sandboxes, or set more `slots`"
            )
        )
        self._waiting.remove(waiter)

    async def _fit(self, slot: Slot, limits: Limits) -> None:
        """Apply the limits that differ from the slot's present ones.

        Raises:
            SandboxError: they could not be set.
        """
        if not slot.limited(limits):
            await slot.prepared()  # its last sandbox must not use memory any more
            try:
                slot.limit(limits)
            except OSError as error:
                slot.close(f"its memory limit could not be set: {error}")
                raise SandboxError(slot.dead) from error
        if slot.disk_mb != limits.disk_mb:
            slot.fresh(limits.disk_mb)

    async def _renewed(self, sandbox: LocalSandbox) -> Slot:
        """Return a clean slot: a free one with its next process ready, or the sandbox's own."""
        limits, slot = sandbox.limits, sandbox.slot
        if sandbox.image is not None:
            slot.close("the sandbox was reset")
            return await self._images.restart(sandbox.image, limits)
        for other in reversed(self._free):
            fits = other.disk_mb == limits.disk_mb and other.limited(limits)
            if other.child is not None and fits:
                self._free.remove(other)
                self._recycle(slot)
                return other
        slot.fresh(limits.disk_mb, "the sandbox was reset")
        return slot

    def _give_back(self, sandbox: LocalSandbox, counted: Slot) -> None:
        """Take back the slot of a sandbox; of one with an image, the slot that is `counted`."""
        self._open.discard(sandbox)
        self._stats.in_use -= 1
        if sandbox.slot.dead and not self._closing and not sandbox.blamed:
            self._stats.lost += 1
        if sandbox.image is None:
            counted = sandbox.slot  # after a reset it may be another
        else:
            sandbox.slot.close("its sandbox was closed")
        self._recycle(counted)

    def _recycle(self, slot: Slot) -> None:
        if slot.executions >= self._max_executions:
            slot.close(f"it has run {slot.executions} programs")
        slot.fresh(slot.disk_mb)
        self._offer(slot)

    def _offer(self, slot: Slot) -> None:
        """Give the slot to the caller that has waited longest, or else to the free slots."""
        if slot.dead:
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._free.append(slot)

    # ------------------------------------------------------------------ slots
    async def _start_slots(self) -> None:
        """Start a slot for each free index.

        Raises:
            SandboxError, OSError: one of them could not start.
        """
        try:
            async with asyncio.TaskGroup() as starting:
                for _ in range(len(self._indices)):
                    starting.create_task(self._add_slot(), name="start slot")
        except BaseExceptionGroup as group:
            raise leaves(group)[0] from group  # one is enough: they share their cause

    async def _add_slot(self) -> None:
        index = self._indices.pop(0)
        group = None
        try:
            if self._groups is not None:
                group = self._groups.make(cgroup.group_name(f"{self._prefix}-{index}"))
        except OSError:
            self._indices.append(index)
            raise
        slot = Slot(index, self._config, group, on_death=self._lost)
        self._slots.add(slot)
        await slot.start()
        slot.fresh(self._limits.disk_mb)
        self._offer(slot)

    async def _watch(self) -> None:
        """Find slots that were frozen from outside, all of them in the same turn of the loop."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for slot in list(self._slots):
                slot.look()
            self._images.look()

    def _lost(self, slot: Slot) -> None:
        if slot.was_ready and slot.executions < self._max_executions and not self._closing:
            self._warnings.warn(
                "sandbox slot %d is lost: %s; another takes its place",
                slot.index, slot.dead, why=str(slot.dead),
            )  # fmt: skip
        self._slots.discard(slot)
        self._dying.add(slot)
        if slot in self._free:
            self._free.remove(slot)
        self._work.set()

    def _bury(self) -> bool:
        """Forget the slots that have ended; return True if none is left to end."""
        for slot in [slot for slot in self._dying if slot.gone()]:
            self._dying.discard(slot)
            self._indices.append(slot.index)
        return not self._dying

    async def _keep(self) -> None:
        """Replace slots that have ended."""
        while True:
            await self._work.wait()
            self._work.clear()
            pause_s = FIRST_PAUSE_S
            while not self._bury() or self._indices:
                wanted = len(self._indices)
                try:
                    await self._start_slots()
                    self._stats.respawns += wanted
                except (SandboxError, OSError) as error:
                    log.error("a sandbox slot could not be replaced: %s", error)
                    pause_s = LAST_PAUSE_S
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
