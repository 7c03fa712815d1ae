"""The images of the local backend: folders of a cache, built from recipes.

A layer has the files that a Dockerfile adds; the rest of its root is the machine's. It is built
beside its place and renamed, under a file lock that a killed process cannot leave behind, so that
several processes share the cache: it holds a shared lock on each layer it has handed out, and the
one that builds removes the layers used longest ago, and in no use now, above the bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from agentgym_rl import SandboxError
from agentgym_rl.core import ImageError
from agentgym_rl.gym import ExecResult, Image, ImageRecipe
from arl_sandboxes.arguments import OWN_FOLDER
from arl_sandboxes.dockerfile import Copy, Dockerfile, Folder, Plan, Run, digest
from arl_sandboxes.images import BASES, is_common

from . import tree
from .interpreter import SlotConfig

FORMAT = 1
"""The version of the layers' form, a part of their names."""
LINKS = f"{OWN_FOLDER}/bin"
"""The folder of the names `python` and `python3` of the programs' interpreter."""
PATH = f"{LINKS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MACHINES = ("/bin", "/dev", "/lib", "/lib64", "/proc", "/sbin", "/sys", LINKS)
"""The folders in which an image can have no files of its own."""
OUTPUT_CHARS = 2000
"""The length of the end of a failing RUN's output, in its error."""
MAX_UNUSED = 256
"""The most images that are kept for later sandboxes."""
SPARE_S = 10.0
"""The time to end a build whose last RUN has used all of it."""
_LOCK_PAUSE_S = 0.05

Runs = Callable[[Image, Run, float, Path], Awaitable[ExecResult]]
"""A function that runs a step in a sandbox of an unfinished layer, with a time limit in seconds,
and copies the file system that it leaves to a folder."""


def default_folder() -> Path:
    """Return the user's folder of layers."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "agentgym-rl" / "images"


class LayerCache:
    """The layers that this process uses; open until `close`.

    Args:
        folder: The place of the cache, which other processes of this user may share.
        bound_mb: The size above which layers that nobody uses are removed.
        owner: The user that programs are on this machine; None: this process's user.
        config: The interpreter and folders that programs see.
        run: The function that carries out RUN.
        bases: The base images for which this machine stands besides the common ones.
    """

    def __init__(
        self,
        folder: Path,
        bound_mb: int,
        owner: int | None,
        config: SlotConfig,
        run: Runs,
        *,
        bases: Collection[str] = (),
    ) -> None:
        self._bases = frozenset(bases)
        self._folder, self._bound, self._owner = folder, bound_mb << 20, owner
        self._config, self._run = config, run
        self._held: OrderedDict[str, int] = OrderedDict()
        """The lock files of the layers that this process has handed out, by name; those used last
        at the end."""
        self._users: Counter[str] = Counter()
        """The number of sandboxes of each layer."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._refused: dict[str, str] = {}
        """The reasons of failed builds, which would fail again, by name."""

    def close(self) -> None:
        """Give up all layers, and remove what killed and failed builds left. Idempotent."""
        while self._held:
            os.close(self._held.popitem()[1])
        for path in self._folder.glob("*.lock"):
            self._remove(path, path.stem, unfinished=True)

    async def prepare(
        self, recipe: ImageRecipe, timeout_s: float, report: Callable[[str], None]
    ) -> Image:
        """Return the image of a recipe, built unless the cache has it.

        Raises:
            ImageError: it cannot be built here.
            SandboxError: a sandbox, the disk, or another process's build failed.
        """
        # In a thread, as a recipe may have many megabytes.
        plan = await asyncio.to_thread(_plan, recipe, self._bases)
        key = await asyncio.to_thread(digest, recipe)
        seed = f"{FORMAT} {self._config.python} {self._owner} {key}"
        # A layer has no files at their places.
        seed += "".join(f" {to}" for source, to in sorted(self._config.read_only) if source != to)
        name = hashlib.sha256(seed.encode()).hexdigest()[:32]
        image = Image(key, plan.work_dir, plan.env, place=str(self._folder / name))
        try:
            async with (
                asyncio.timeout(timeout_s + SPARE_S),
                self._locks.setdefault(name, asyncio.Lock()),
            ):
                if name in self._refused:
                    raise ImageError(self._refused[name])
                if name not in self._held:
                    until = time.monotonic() + timeout_s
                    build = functools.partial(self._build, recipe, plan, until, report)
                    await self._hold(name, build)
                self._let_go(name)
        except ImageError as error:
            self._refused[name] = str(error)
            raise
        except TimeoutError:
            raise SandboxError(
                f"{recipe.name}: the image was not built within {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise SandboxError(f"{recipe.name}: the image's files: {error}") from error
        finally:
            if name in self._locks and not self._locks[name].locked():
                del self._locks[name]
        return image

    def order(self, image: Image, disk_mb: int) -> dict[str, Any]:
        """Return the order that a slot gets to start from the image."""
        place = Path(image.place)
        return {
            "cache": str(place.parent),
            "layer": place.name,
            "work_dir": image.work_dir,
            "env": {"LANG": "C.UTF-8", "HOME": "/root", **image.env},
            "links": {f"{LINKS}/{name}": self._config.python for name in ("python", "python3")},
            "disk_mb": disk_mb,
        }

    def use(self, image: Image) -> None:
        """Keep the image for one more sandbox, until `release`.

        Raises:
            SandboxError: the image is not of this cache, or was given up for newer ones.
        """
        name = Path(image.place).name
        if name not in self._held:
            raise SandboxError(
                f"the image {image.key[:12]} was not prepared by this backend, or {MAX_UNUSED} "
                "others were since: prepare it again"
            )
        self._held.move_to_end(name)
        self._users[name] += 1

    def release(self, image: Image) -> None:
        """Take back one `use`."""
        name = Path(image.place).name
        self._users[name] -= 1
        if self._users[name] <= 0:
            del self._users[name]

    def _let_go(self, newest: str) -> None:
        """Give up the images used longest ago, and by no sandbox: each costs an open file."""
        self._held.move_to_end(newest)
        unused = [name for name in self._held if name not in self._users]
        for name in unused[:-MAX_UNUSED]:
            os.close(self._held.pop(name))

    # ------------------------------------------------------------------ files of the cache
    async def _hold(self, name: str, build: Callable[[Path], Awaitable[None]]) -> None:
        """Hold a shared lock on the layer; build it first if it is not there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            handle = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                alone = await self._lock(handle, name)
                if alone and _is_current(handle, self._folder / f"{name}.lock"):
                    if not (self._folder / name).is_dir():
                        await self._build_alone(name, handle, build)
                    fcntl.flock(handle, fcntl.LOCK_SH)
                # Another process may have removed the layer between two locks.
                if (self._folder / name).is_dir() and _is_current(
                    handle, self._folder / f"{name}.lock"
                ):
                    os.utime(handle)
                    self._held[name] = os.dup(handle)
                    return
            finally:
                os.close(handle)

    async def _lock(self, handle: int, name: str) -> bool:
        """Lock a layer: alone (True) or, if it is built already, with others (False)."""
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                if kind == fcntl.LOCK_SH and not (self._folder / name).is_dir():
                    continue
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, kind | fcntl.LOCK_NB)
                    return kind == fcntl.LOCK_EX
            await asyncio.sleep(_LOCK_PAUSE_S)

    async def _build_alone(
        self, name: str, handle: int, build: Callable[[Path], Awaitable[None]]
    ) -> None:
        new = self._folder / f"{name}.new"
        await asyncio.to_thread(self._discard, name)  # what a killed process left
        new.mkdir(mode=0o755)
        try:
            await build(new)
            size = await asyncio.to_thread(tree.size, new)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(size).encode(), 0)
            new.rename(self._folder / name)
        except BaseException:
            self._discard(name)
            raise
        await asyncio.to_thread(self._trim, name)

    def _parts(self, name: str) -> tuple[Path, Path]:
        """Return the folders of an unfinished layer: its files, and those that a RUN leaves."""
        return self._folder / f"{name}.new", self._folder / f"{name}.new.run"

    def _discard(self, name: str) -> None:
        """Remove an unfinished layer, whose lock the caller holds."""
        for part in self._parts(name):
            tree.remove(part)

    def _trim(self, kept: str) -> None:
        """Remove the layers used longest ago above the bound, and what killed builds left."""
        found = sorted(self._folder.glob("*.lock"), key=_age)
        sizes = {path: _size(path) for path in found}
        for path in found:
            too_large = sum(sizes.values()) > self._bound
            if path.stem in (kept, *self._held):
                continue
            if self._remove(path, path.stem, unfinished=not too_large):
                sizes[path] = 0

    def _remove(self, lock: Path, name: str, *, unfinished: bool) -> bool:
        """Remove a layer that nobody builds or uses (`unfinished`: only if it is not complete);
        return True if it is gone with its lock."""
        complete = (self._folder / name).is_dir()
        parts = any(part.exists() for part in self._parts(name))
        if unfinished and complete and not parts:
            return False
        with contextlib.suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_current(file.fileno(), lock):
                self._discard(name)
                complete = (self._folder / name).is_dir()  # perhaps since the last look
                if not (unfinished and complete):
                    tree.remove(self._folder / name)
                    lock.unlink()
                    return True
        return False

    # ------------------------------------------------------------------ a build
    async def _build(
        self,
        recipe: ImageRecipe,
        plan: Plan,
        until: float,
        report: Callable[[str], None],
        new: Path,
    ) -> None:
        """Carry out the steps in the folder `new`."""
        for number, step in enumerate(plan.steps, 1):
            report(f"{recipe.name}: step {number} of {len(plan.steps)}: {step.at}")
            if isinstance(step, Run):
                await self._run_step(recipe, step, new, until)
            else:
                await asyncio.to_thread(self._write_step, recipe, step, new)
        with contextlib.closing(tree.Tree(new, self._owner)) as layer:
            try:
                layer.make_folder(plan.work_dir)
            except (NotADirectoryError, FileExistsError) as error:
                raise ImageError(
                    f"{recipe.name}: its work folder {plan.work_dir} is a file or a link after the "
                    f"last step, or below one ({error})"
                ) from error

    def _write_step(self, recipe: ImageRecipe, step: Copy | Folder, new: Path) -> None:
        with contextlib.closing(tree.Tree(new, self._owner)) as layer:
            try:
                if isinstance(step, Folder):
                    self._check_place(recipe, step, step.path)
                    layer.make_folder(step.path)
                    return
                for path, data, mode in step.entries(recipe, has_folder=layer.has_folder):
                    self._check_place(recipe, step, path)
                    layer.write(path, data, mode)
            except OSError as error:
                raise _error(recipe, step, str(error)) from error

    def _check_place(self, recipe: ImageRecipe, step: Copy | Folder, path: str) -> None:
        shown = [target for _, target in self._config.read_only if target != "/usr"]
        for place in (*MACHINES, *shown):
            if Path(path).is_relative_to(place):
                raise _error(recipe, step, f"{path}: {place} is this machine's own in every image")

    async def _run_step(self, recipe: ImageRecipe, step: Run, new: Path, until: float) -> None:
        """Run a step in a sandbox, and put the files that it leaves in place of the layer's."""
        after = new.with_name(f"{new.name}.run")
        after.mkdir(mode=0o755)
        with contextlib.closing(tree.Tree(new, self._owner)) as layer:
            layer.make_folder(step.work_dir)
        image = Image("", step.work_dir, step.env, place=str(new))
        result = await self._run(image, step, until - time.monotonic(), after)
        if not result.ok:
            output = (result.stdout_text + result.stderr_text)[-OUTPUT_CHARS:]
            code = f", exit code {result.exit_code}" if result.exit_code is not None else ""
            raise _error(recipe, step, f"it ended with {result.status}{code}:\n{output}")
        await asyncio.to_thread(tree.remove, new)
        after.rename(new)


def _plan(recipe: ImageRecipe, bases: Collection[str]) -> Plan:
    """Return the steps of a recipe whose base this machine can stand for: a common one, or one of
    `bases`.

    Raises:
        ImageError: it cannot, or an instruction is not read here.
    """
    file = Dockerfile(recipe)
    if not (is_common(file.base) or file.base in bases):
        option = f"--sandbox.options.bases='{{{json.dumps(file.base)} = \"debian\"}}'"
        raise ImageError(
            f"{recipe.name}: the local sandbox has no image {file.base!r}: this machine stands for "
            f"{', '.join(BASES)}. If it has the programs that the task needs, it can stand for "
            f"this one, too: {option}; else use --sandbox docker"
        )
    plan = file.plan({"PATH": PATH})
    if plan.user not in ("", "0", "root", "0:0", "root:root"):
        raise ImageError(
            f"{recipe.name}: USER {plan.user}: in the local sandbox all programs are one user; "
            "use --sandbox docker for others"
        )
    return plan


def _error(recipe: ImageRecipe, step: Copy | Run | Folder, why: str) -> ImageError:
    return ImageError(f"{recipe.name}: Dockerfile line {step.at.line}: {step.at}: {why}")


def _is_current(handle: int, path: Path) -> bool:
    """Return True if the open lock file still has its name: the one who removes a layer removes
    its lock file, too."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        text = path.read_text()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
