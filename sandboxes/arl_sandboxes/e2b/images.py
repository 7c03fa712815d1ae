"""The images of the e2b backend: a template and files to add, or a template that E2B built."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import posixpath
import shlex
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from e2b import AsyncTemplate, TemplateBuildStatus
from e2b.template.main import TemplateBuilder

from agentgym_rl import SandboxUnavailable
from agentgym_rl.core import ImageError
from agentgym_rl.gym import Image, ImageRecipe
from arl_sandboxes.arguments import OWN_FOLDER
from arl_sandboxes.dockerfile import Copy, Dockerfile, Folder, Plan, Run
from arl_sandboxes.images import Prepared, PreparedImages, archive, is_common

from .account import Account
from .inside import PATH

log = logging.getLogger(__name__)

POLL_S = 0.5
"""The pause between two looks at a build."""
NUM_KEPT = 2000
"""The number of last used images that are kept: far more than there are sandboxes at once."""
SHOWN_LINES = 20
"""The number of last lines of a failed build's log, in its error."""


class Images(PreparedImages):
    """The prepared images of a backend.

    Args:
        template: The template that stands for the common base images.
        bases: The templates that stand for base images, by the name in a Dockerfile.
        try_out: A function that starts a sandbox of an image and ends it; it raises ImageError if
            none starts, and SandboxUnavailable if E2B has no such template.
    """

    def __init__(
        self,
        account: Account,
        template: str,
        bases: Mapping[str, str],
        try_out: Callable[[Prepared], Awaitable[None]],
    ) -> None:
        super().__init__(NUM_KEPT)
        self._account, self._template, self._bases = account, template, dict(bases)
        self._try_out = try_out

    async def _make(
        self, recipe: ImageRecipe, key: str, until: float, report: Callable[[str], None]
    ) -> Prepared:
        file = Dockerfile(recipe)
        plan = file.plan({"PATH": PATH})
        stand_in = self._bases.get(file.base) or (self._template if is_common(file.base) else "")
        if stand_in and not plan.runs:
            added = archive(recipe, plan.steps, set())
            image = Image(key, plan.work_dir, plan.env, place=stand_in)
            return Prepared(image, added, plan.user)
        # Programs of a build may need the very base that the author names.
        chosen = self._bases.get(file.base, "")
        name = f"arl-{hashlib.sha256(f'{key} {chosen}'.encode()).hexdigest()[:40]}"
        made = Prepared(Image(key, plan.work_dir, plan.env, place=name), b"", plan.user)
        if await self._account.has_template(name):
            try:
                await self._try_out(made)
                return made
            except SandboxUnavailable as error:
                log.info("the template %s is built again: %s", name, error)
        try:
            await self._build(recipe, plan, file.base, chosen, made, until, report)
        except ImageError as error:
            self._refused[key] = str(error)
            raise
        await self._try_out(made)
        return made

    async def _build(
        self,
        recipe: ImageRecipe,
        plan: Plan,
        base: str,
        chosen: str,
        made: Prepared,
        until: float,
        report: Callable[[str], None],
    ) -> None:
        """Let E2B build the template of an image, and wait for the end.

        Raises:
            ImageError: a step failed, or it took too long.
            SandboxError: E2B does not answer.
        """
        for step in plan.steps:
            report(f"{recipe.name}: to be built at E2B: {step.at}")
        with tempfile.TemporaryDirectory(prefix="arl-e2b-") as folder:
            blank = AsyncTemplate(file_context_path=folder)
            template = blank.from_template(chosen) if chosen else blank.from_image(base)
            await asyncio.to_thread(_add_steps, template, recipe, plan.steps, Path(folder))
            left_s = max(1.0, until - time.monotonic())
            build = await self._account.build(template, made.image.place, timeout_s=left_s)
        num_seen, tail = 0, deque[str](maxlen=SHOWN_LINES)
        while True:
            now = await self._account.build_status(build, num_seen=num_seen)
            num_seen += len(now.log_entries)
            for entry in now.log_entries:
                tail.append(entry.message)
                report(f"{recipe.name}: {entry.message}")
            if now.status is TemplateBuildStatus.READY:
                return
            why = ""
            if now.status is TemplateBuildStatus.ERROR and not now.log_entries:
                why = now.reason.message if now.reason is not None else "E2B gave no reason"
            elif time.monotonic() > until:
                why = "it took longer than it may"
            if why:
                output = "\n".join(tail)
                raise ImageError(f"{recipe.name}: the build at E2B failed: {why}\n{output}")
            await asyncio.sleep(0 if now.log_entries else POLL_S)


def _add_steps(
    template: TemplateBuilder,
    recipe: ImageRecipe,
    steps: Sequence[Copy | Run | Folder],
    folder: Path,
) -> None:
    """Add a Dockerfile's steps to a template: an archive of the files before each RUN, which is in
    `folder` for the upload, and the programs, which do not depend on E2B's ideas of a user, a
    folder and a shell."""
    known: set[str] = set()
    waiting: list[Copy | Run | Folder] = []

    def add_files() -> None:
        if data := archive(recipe, waiting, known):
            name = hashlib.sha256(data).hexdigest()[:16] + ".tar"
            (folder / name).write_bytes(data)
            path = posixpath.join(OWN_FOLDER, name)
            template.copy(name, path, user="root")
            template.run_cmd(f"tar -xf {path} -C / && rm {path}", user="root")
        waiting.clear()

    for step in steps:
        if isinstance(step, Run):
            add_files()
            env = shlex.join(f"{name}={value}" for name, value in step.env.items())
            program = f"cd {shlex.quote(step.work_dir)} && env {env} {shlex.join(step.argv)}"
            template.run_cmd(program, user=step.user or "root")
        else:
            waiting.append(step)
    add_files()
