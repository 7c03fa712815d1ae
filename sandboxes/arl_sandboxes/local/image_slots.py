"""The slots of sandboxes with images: each starts from one image, once, and ends with its sandbox.

The slow part of the start of a slot is the same for all images: it is done ahead, in processes that
wait for their image.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import Limits

from .cgroup import Hierarchy, group_name
from .inside import wire
from .interpreter import SlotConfig
from .processes import ended
from .slot import START_TIMEOUT_S, Slot

log = logging.getLogger(__name__)

USER_INDEX = -1
"""The index that gives all these slots one user on the machine, that of the images' files.

Slots of one user are kept apart by their namespaces: no process sees, signals or traces one of
another, IPC is their own, and the kernel counts processes and watches per user namespace. Each has
an overlay of its own, so a file that one changes is its copy."""
AHEAD = 4
"""The number of processes that wait for an image."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 2.0


class ImageSlot(Slot):
    """A slot that is started ahead, and then enters one image."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._listeners: dict[int, asyncio.Future[socket.socket]] = {}
        """The sockets that are to listen in the slot, by port."""

    async def enter(self, image: Mapping[str, Any]) -> None:
        """Go on from `start(ahead=True)`: enter the namespaces, and the image of the order
        `LayerCache.order`.

        Raises: see `start`.
        """
        try:
            await self._order({"image": image}, "start from its image")
        except BaseException as error:
            self.close(f"its image did not start: {str(error) or type(error).__name__}")
            raise

    async def listen(self, port: int) -> socket.socket:
        """Return a socket that listens at 127.0.0.1 in the slot of an image.

        Raises:
            SandboxError: it cannot, for example since a program does already.
        """
        if port in self._listeners:
            raise SandboxError(f"port {port} is being opened already")
        listening = self._listeners[port] = self._loop.create_future()
        self._command(wire.LISTEN, port)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await listening
        except TimeoutError:
            raise SandboxError(f"port {port} was not opened within {START_TIMEOUT_S:g} s") from None
        finally:
            self._listeners.pop(port, None)

    def _handle_other(self, kind: bytes, body: bytes, handles: list[int]) -> None:
        assert kind == wire.LISTENER, kind
        port = wire.NUMBER.unpack_from(body)[0]
        made = socket.socket(fileno=handles[0]) if handles else None
        listening = self._listeners.get(port)
        if listening is None or listening.done():
            if made is not None:
                made.close()
        elif made is None:
            why = body[wire.NUMBER.size :].decode("utf-8", "replace")
            listening.set_exception(SandboxError(f"port {port} cannot be opened: {why}"))
        else:
            made.setblocking(False)
            listening.set_result(made)

    def close(self, why: str = "closed") -> None:
        super().close(why)
        for listening in self._listeners.values():
            if not listening.done():
                listening.set_exception(SandboxLost(self.dead))


class ImageSlots:
    """The slots in use, and the processes started ahead; `keep` runs while the backend is open."""

    def __init__(
        self,
        config: SlotConfig,
        groups: Hierarchy | None,
        prefix: str,
        *,
        on_end: Callable[[Slot], None],
    ) -> None:
        self._on_end = on_end
        self._config, self._groups, self._prefix = config, groups, prefix
        self._ahead: deque[ImageSlot] = deque()
        self._living: set[Slot] = set()
        self._dying: set[Slot] = set()
        self._count = itertools.count()
        self._work = asyncio.Event()
        self._used = False

    def use(self) -> None:
        """Begin to start processes ahead, since an image will be needed."""
        if not self._used:
            self._used = True
            self._work.set()

    async def start(self, order: Mapping[str, Any], limits: Limits) -> ImageSlot:
        """Return a slot that runs programs in the image of an order.

        Raises:
            SandboxError: it did not start.
        """
        self.use()
        try:
            slot = self._take() or await self._start_ahead()
            try:
                slot.limit(limits)
                await slot.enter(order)
                slot.fresh(limits.disk_mb)
                await slot.prepared()
            except BaseException as error:
                slot.close(f"it did not start: {str(error) or type(error).__name__}")
                raise
        except OSError as error:
            raise SandboxError(f"a sandbox of an image could not start: {error}") from error
        return slot

    def _take(self) -> ImageSlot | None:
        while self._ahead:
            slot = self._ahead.popleft()
            self._work.set()
            if not slot.dead:
                return slot
        return None

    async def _start_ahead(self) -> ImageSlot:
        name = group_name(f"{self._prefix}-image-{next(self._count)}")
        group = self._groups.make(name) if self._groups is not None else None
        slot = ImageSlot(USER_INDEX, self._config, group, on_death=self._lost)
        self._living.add(slot)
        await slot.start(ahead=True)
        return slot

    def _lost(self, slot: Slot) -> None:
        self._living.discard(slot)
        self._dying.add(slot)
        with contextlib.suppress(ValueError):
            self._ahead.remove(slot)  # type: ignore[arg-type]
        self._work.set()

    def look(self) -> None:
        """Find slots that were frozen from outside."""
        for slot in list(self._living):
            slot.look()

    async def keep(self) -> None:
        """Start processes ahead, and bury those that have ended."""
        pause_s = FIRST_PAUSE_S
        while True:
            if not self._dying:
                await self._work.wait()
            self._work.clear()
            try:
                while self._used and len(self._ahead) < AHEAD:
                    self._ahead.append(await self._start_ahead())
                pause_s = FIRST_PAUSE_S
            except (SandboxError, OSError) as error:
                log.error("a process for images could not start: %s", error)
                self._work.set()
                pause_s = LAST_PAUSE_S
            self._bury()
            await asyncio.sleep(pause_s)

    def _bury(self) -> bool:
        gone = {slot for slot in self._dying if slot.gone()}
        self._dying -= gone
        for slot in gone:
            self._on_end(slot)
        return not self._dying

    async def close(self) -> None:
        """End all of them; none is left."""
        self._used = False
        for slot in list(self._living):
            slot.close("the backend was closed")
        try:
            await ended(self._bury)
        finally:
            if self._dying:
                log.error("%d sandboxes of images did not end", len(self._dying))
                self._dying.clear()
