"""The images of a local backend: their layers, and the slots that start from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import Capabilities, ExecResult, Image, ImageRecipe, Limits, SandboxStats
from arl_sandboxes.dockerfile import Run

from . import tree
from .cgroup import Hierarchy
from .image_slots import USER_INDEX, ImageSlots
from .interpreter import SlotConfig
from .layers import LayerCache, default_folder
from .sandbox import LocalSandbox
from .slot import HOST_UID, Slot

BUILD_LIMITS = Limits(
    memory_mb=2048, processes=256, disk_mb=1024, file_mb=512, open_files=1024, output_bytes=1 << 20
)
"""The limits of a RUN, besides the time left for the build."""


class Images:
    """The layers and slots of a backend. All errors are those of `SandboxBackend.prepare`."""

    def __init__(
        self,
        config: SlotConfig,
        groups: Hierarchy | None,
        capabilities: Capabilities,
        prefix: str,
        folder: str,
        bound_mb: int,
        bases: Collection[str],
    ) -> None:
        self._capabilities = capabilities
        self._owner = HOST_UID + USER_INDEX if os.getuid() == 0 else None
        self._slots = ImageSlots(config, groups, prefix, on_end=self._ended)
        self._started: dict[Slot, Image] = {}
        place = Path(folder) if folder else default_folder()
        self._layers = LayerCache(
            place.absolute(), bound_mb, self._owner, config, self._run, bases=bases
        )
        self._building = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        self.keep, self.look = self._slots.keep, self._slots.look

    async def close(self) -> None:
        self._layers.close()
        await self._slots.close()

    async def prepare(
        self, recipe: ImageRecipe, timeout_s: float, report: Callable[[str], None] | None
    ) -> Image:
        self._check()
        self._slots.use()
        return await self._layers.prepare(recipe, timeout_s, report or (lambda line: None))

    async def start(self, image: Image, limits: Limits) -> Slot:
        """Return a slot of its own for a sandbox of the image."""
        self._check()
        self._layers.use(image)
        try:
            slot = await self._slots.start(self._layers.order(image, limits.disk_mb), limits)
        except BaseException:
            self._layers.release(image)
            raise
        self._started[slot] = image
        return slot

    async def restart(self, image: Image, limits: Limits) -> Slot:
        """Return another slot for a sandbox that is reset.

        Raises:
            SandboxLost: none starts.
        """
        try:
            return await self.start(image, limits)
        except SandboxError as error:
            raise SandboxLost(f"the sandbox could not be reset: {error}") from error

    def _ended(self, slot: Slot) -> None:
        """Give the image of a slot up, whose processes are gone."""
        image = self._started.pop(slot, None)
        if image is not None:
            self._layers.release(image)

    def _check(self) -> None:
        if not self._capabilities.images:
            raise SandboxError(
                "the local sandbox starts no images on this machine (`arl doctor sandbox` says why)"
            )

    async def _run(self, image: Image, step: Run, timeout_s: float, after: Path) -> ExecResult:
        """Run a step of a build in a sandbox of the unfinished layer; copy the files it leaves."""
        seconds = max(1.0, timeout_s)
        limits = replace(BUILD_LIMITS, wall_s=seconds, cpu_s=int(seconds) + 1)
        async with self._building:
            slot = await self._slots.start(self._layers.order(image, limits.disk_mb), limits)
            sandbox = LocalSandbox(
                "the sandbox of a build", slot, limits, self._capabilities,
                stats=SandboxStats(), on_close=lambda _: None, renewed=_not_renewed, image=image,
            )  # fmt: skip
            try:
                result = await sandbox.exec(step.argv)
                if result.ok:
                    await asyncio.to_thread(self._copy, slot, after)
            finally:
                await sandbox.close()
                slot.close("the build's step has ended")
        return result

    def _copy(self, slot: Slot, after: Path) -> None:
        with contextlib.closing(tree.Tree(after, self._owner)) as layer:
            root = os.dup(slot.root)
            try:
                layer.copy(root)
            finally:
                os.close(root)


async def _not_renewed(sandbox: LocalSandbox) -> Slot:
    raise SandboxError(f"{sandbox.id} cannot be reset")
