"""The parts of images that several backends share: the bases that another system can stand for, the
archive of the files that a recipe adds to its base, and the images that were prepared."""

from __future__ import annotations

import asyncio
import io
import posixpath
import re
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from agentgym_rl import ConfigError, SandboxError
from agentgym_rl.core import ImageError
from agentgym_rl.gym import Image, ImageRecipe
from agentgym_rl.runtime import LruDict

from .dockerfile import Copy, Folder, Run, digest

BASES = ("debian", "python", "ubuntu")
"""The base images for which another Linux with Python can stand, whatever their tags."""
_OFFICIAL = re.compile(r"(?:docker\.io/)?(?:library/)?([a-z0-9._/-]+)(?::[\w.-]+)?(?:@[\w:]+)?")
_STANDARD = frozenset(
    ("/", "/bin", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc",
     "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local",
     "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/usr/share", "/usr/src", "/var", "/var/lib",
     "/var/log", "/var/tmp"),
)  # fmt: skip
"""The folders of a base image whose mode an archive must not change."""


@dataclass(frozen=True)
class Prepared:
    """The things from which a container or machine of an image is started."""

    image: Image
    archive: bytes
    """A tar of the files to be added to the backend's own image `image.place`; b"" for none."""
    user: str
    """The user that the image names (USER); "": root."""


class PreparedImages(ABC):
    """The images that a backend has prepared, each recipe once, of which it keeps the `most` last
    used ones. A recipe is prepared by one caller at a time."""

    def __init__(self, most: float = float("inf")) -> None:
        self._prepared: LruDict[str, Prepared] = LruDict(most)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._refused: dict[str, str] = {}
        """The reasons of builds that failed, and would again, by key."""

    def get(self, image: Image) -> Prepared:
        """Return the image prepared under this key.

        Raises:
            SandboxError: there is none.
        """
        return self.of_key(image.key)

    def of_key(self, key: str) -> Prepared:
        """Return the image of a key. Errors are those of `get`."""
        found = self._prepared.use(key)
        if found is None:
            raise SandboxError(f"the image {key[:12]} was not prepared by this backend")
        return found

    def forget(self, image: Image) -> None:
        """Forget an image: it is prepared again when it is next wanted."""
        self._prepared.remove(image.key)

    async def prepare(
        self, recipe: ImageRecipe, timeout_s: float, report: Callable[[str], None]
    ) -> tuple[Image, bool]:
        """Return the image of a recipe, and True if it is new.

        Raises:
            ImageError: it cannot be built, or a base image is missing.
            SandboxError: the backend failed, or it took too long.
        """
        key = await asyncio.to_thread(digest, recipe)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._refused:
                raise ImageError(self._refused[key])
            found = self._prepared.use(key)
            if found is not None:
                return found.image, False
            made = await self._make(recipe, key, time.monotonic() + timeout_s, report)
            self._prepared[key] = made
            return made.image, True

    @abstractmethod
    async def _make(
        self, recipe: ImageRecipe, key: str, until: float, report: Callable[[str], None]
    ) -> Prepared:
        """Make an image by the monotonic time `until`; keep in `_refused` the reason why it cannot
        be made.

        All errors are those of `prepare`.
        """


def is_common(base: str) -> bool:
    """Return True if a base image is one of `BASES`, of any tag."""
    match = _OFFICIAL.fullmatch(base)
    return match is not None and match[1] in BASES


def checked_bases(bases: Mapping[str, str] | None) -> frozenset[str]:
    """Return the names of the base images for which a common base can stand.

    Raises:
        ConfigError: the value of one is no common base, or they are no table.
    """
    if bases is not None and not isinstance(bases, Mapping):
        raise ConfigError(
            f"bases: got {bases!r:.80}, expected base images with what stands for them, as in "
            'TOML: {"node:22" = "debian"}'
        )
    for name, stand_in in (bases or {}).items():
        if not isinstance(stand_in, str) or not is_common(stand_in):
            raise ConfigError(
                f"bases: {name!r} is to be {stand_in!r:.80}; allowed: {', '.join(BASES)}, for "
                "which this machine stands (docker takes images of its daemon, e2b templates)"
            )
    return frozenset(bases or {})


def archive(recipe: ImageRecipe, steps: Sequence[Copy | Run | Folder], known: set[str]) -> bytes:
    """Return what steps without RUN add to an image, as a tar of root's files; b"" for nothing.

    A target without "/" at its end is a folder here if a step made one of that name: the base
    image's own folders are known by their usual names only.

    known: the folders that earlier steps made, to which those of these steps are added.
    """
    folders: dict[str, None] = {}
    files: dict[str, tuple[bytes, int]] = {}

    def enter(path: str) -> None:
        """Add a folder and those above it, in their order."""
        if path not in _STANDARD and path not in known:
            enter(posixpath.dirname(path))
            folders[path] = None
            known.add(path)

    for step in steps:
        if isinstance(step, Folder):
            enter(step.path)
        elif isinstance(step, Copy):
            has_folder = (_STANDARD | known).__contains__
            for path, data, mode in step.entries(recipe, has_folder=has_folder):
                enter(posixpath.dirname(path))
                files[path] = data, mode
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path in folders:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, (data, mode) in files.items():
            add_file(tar, path.lstrip("/"), data, mode)
    return made.getvalue() if folders or files else b""


def add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
