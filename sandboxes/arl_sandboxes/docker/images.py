"""The images of the docker backend: a base image and files to add, or one that the daemon built."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl import SandboxError
from agentgym_rl.core import ImageError
from agentgym_rl.gym import Image, ImageRecipe
from arl_sandboxes.dockerfile import NAME, Dockerfile, mode_of
from arl_sandboxes.images import Prepared, PreparedImages, add_file, archive

from . import sdk
from .container import Daemon

LABEL = "agentgym-rl.image"
"""The label of images that were built here; its value is the digest of the recipe and its bases."""
SHOWN_CHARS = 2000
"""The length of the end of a failed build's output, in its error."""
_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)((?:\s+AS\s+(\S+))?\s*)$", re.I | re.M)


class Images(PreparedImages):
    """The prepared images of a backend.

    Args:
        bases: The daemon's images that stand for base images, by the name in a Dockerfile.
        pull: True if a missing base image may be pulled.
    """

    def __init__(self, daemon: Daemon, bases: Mapping[str, str], *, pull: bool) -> None:
        super().__init__()
        self._daemon, self._bases, self._pull = daemon, dict(bases), pull

    async def _make(
        self, recipe: ImageRecipe, key: str, until: float, report: Callable[[str], None]
    ) -> Prepared:
        why = ""
        try:
            plain = Dockerfile(recipe)
            about = await self._base(recipe, plain.base, until)
            config = about.get("Config") or {}
            plan = plain.plan(_env(config), config.get("WorkingDir") or "/", config.get("User", ""))
        except ImageError as error:
            if NAME not in recipe.files:
                raise
            why = str(error)
        else:
            if not plan.runs:
                image = Image(key, plan.work_dir, plan.env, place=about["Id"])
                return Prepared(image, archive(recipe, plan.steps, set()), plan.user)
        about = await self._build(recipe, key, why, until, report)
        config = about["Config"]
        image = Image(key, config.get("WorkingDir") or "/", _env(config), place=about["Id"])
        return Prepared(image, b"", config.get("User", ""))

    async def _base(self, recipe: ImageRecipe, name: str, until: float) -> dict[str, Any]:
        """Return the daemon's description of a base image.

        Raises:
            ImageError: it has none of that name.
        """
        found = self._bases.get(name, name)
        if about := await self._daemon.call(_inspect, self._daemon.api, found):
            return about
        if self._pull:
            left_s = max(1.0, until - time.monotonic())
            try:
                await self._daemon.call_for(left_s, self._daemon.api.pull, *_repository(found))
            except SandboxError as error:
                raise ImageError(f"{recipe.name}: {found!r} cannot be pulled: {error}") from None
            if about := await self._daemon.call(_inspect, self._daemon.api, found):
                return about
        raise ImageError(
            f"{recipe.name}: the docker daemon has no image {found!r}: run docker pull {found}, or "
            f"set the sandbox's option pull=true, or bases={{{name!r}: 'one of its images'}}"
        )

    # ------------------------------------------------------------------ docker build
    async def _build(
        self, recipe: ImageRecipe, key: str, why: str, until: float, report: Callable[[str], None]
    ) -> dict[str, Any]:
        """Let the daemon build the recipe, unless it has; return its description of the image."""
        text = recipe.files[NAME].decode("utf-8", "replace")
        stages: set[str] = set()
        for match in _FROM.finditer(text):
            if match[2] not in stages and match[2] != "scratch" and "$" not in match[2]:
                await self._base(recipe, match[2], until)
            stages.add(match[4] or "")
        changed = _FROM.sub(lambda m: f"{m[1]}{self._bases.get(m[2], m[2])}{m[3]}", text)
        used = f"{key} {json.dumps(sorted(self._bases.items()))}"
        label = f"{LABEL}={hashlib.sha256(used.encode()).hexdigest()}"
        if found := await self._daemon.call(
            self._daemon.api.images, filters={"label": label}, quiet=True
        ):
            return await self._daemon.call(self._daemon.api.inspect_image, found[0])
        context = _context({**recipe.files, NAME: changed.encode()})
        loop = asyncio.get_running_loop()

        def log_line(line: str) -> None:
            loop.call_soon_threadsafe(report, f"{recipe.name}: {line}")

        left_s = max(1.0, until - time.monotonic())
        try:
            id = await self._daemon.call_for(
                left_s + 10, _build, self._daemon.api, context, label, until, log_line
            )
        except _Failed as error:
            hint = f"\n(without a build: {why})" if why else ""
            self._refused[key] = f"{recipe.name}: docker build failed: {error}{hint}"
            raise ImageError(self._refused[key]) from None
        return await self._daemon.call(self._daemon.api.inspect_image, id)


class _Failed(Exception):
    """The error of a build that the daemon gave up."""


def _build(
    api: sdk.docker.APIClient,
    context: bytes,
    label: str,
    until: float,
    report: Callable[[str], None],
) -> str:
    """Build, in a thread; return the id of the image.

    Raises:
        _Failed: a step failed, or took too long.
    """
    name, _, value = label.partition("=")
    output, id, steps = "", "", None
    left_s = max(1, int(until - time.monotonic()))
    try:
        steps = api.build(
            fileobj=io.BytesIO(context), custom_context=True, rm=True, forcerm=True, decode=True,
            labels={name: value}, timeout=left_s,
        )  # fmt: skip
        for each in steps:
            if time.monotonic() > until:
                raise _Failed(f"it took longer than it may\n{output[-SHOWN_CHARS:]}")
            if line := each.get("stream", "").strip():
                output += line + "\n"
                report(line)
            if "error" in each:
                raise _Failed(f"{each['error']}\n{output[-SHOWN_CHARS:]}")
            id = (each.get("aux") or {}).get("ID", id)
    except sdk.errors.APIError as error:
        raise _Failed(str(error)) from None
    except sdk.RequestException as error:
        raise _Failed(f"it took longer than it may ({error})\n{output[-SHOWN_CHARS:]}") from None
    finally:
        if steps is not None:
            steps.close()  # and so the daemon's answer, of which there may be more
    if not id:
        raise _Failed(f"the daemon named no image\n{output[-SHOWN_CHARS:]}")
    return id


def _inspect(api: sdk.docker.APIClient, name: str) -> dict[str, Any] | None:
    try:
        return api.inspect_image(name)
    except sdk.errors.NotFound:
        return None


def _repository(name: str) -> tuple[str, str | None]:
    """Split a name for `pull`, which would otherwise fetch every tag."""
    if "@" in name:
        return name, None
    before, colon, tag = name.rpartition(":")
    return (before, tag) if colon and "/" not in tag else (name, "latest")


def _env(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = [each.partition("=") for each in config.get("Env") or ()]
    return {name: value for name, _, value in pairs}


def _context(files: Mapping[str, bytes]) -> bytes:
    """Return a build context as a tar."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, data in sorted(files.items()):
            add_file(tar, path, data, mode_of(data))
    return made.getvalue()
