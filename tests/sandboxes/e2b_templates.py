"""The fake's templates: E2B's protocol of their builds, and machines in which the steps really run.

Its images are `debian:12` and `python:3.11-slim`, which are the test machine's programs both. A
step runs as E2B documents it: as the user it names, in a login shell.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import tarfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from e2b_envd import Box

IMAGES = ("debian:12", "python:3.11-slim")
BASE = "base"
PAGE = 100
"""The most lines of a log in one answer."""
_SAVE = "tar -cf - -C / --exclude=./usr --exclude=./proc --exclude=./dev --exclude=./old ."


class Unknown(Exception):
    """A template, build or path that is not there."""


class BuildFailed(Exception):
    """A step that failed."""


@dataclass
class Template:
    """A template by its name; `files` is its root, as a tar, once a build is ready."""

    id: str
    name: str
    files: bytes | None = None


@dataclass
class Build:
    template: Template
    status: str = "waiting"
    log: list[dict[str, str]] = field(default_factory=list)
    reason: str = ""

    def say(self, text: str) -> None:
        now = datetime.now(UTC).isoformat()
        self.log += [{"timestamp": now, "message": t, "level": "info"} for t in text.splitlines()]


class Templates:
    """The templates of an account."""

    def __init__(self) -> None:
        self.known = {BASE: Template(BASE, BASE, b"")}
        self.num_built = 0
        self._builds: dict[str, Build] = {}
        self._uploads: dict[str, bytes] = {}
        self._running: set[asyncio.Task[None]] = set()

    def find(self, name: str) -> Template:
        for each in self.known.values():
            if name in (each.id, each.name):
                return each
        raise Unknown(f"template '{name}' not found")

    def upload(self, hash: str, data: bytes) -> None:
        self._uploads[hash] = data

    def request(self, order: dict[str, Any]) -> dict[str, Any]:
        """POST /v3/templates"""
        name = order["name"]
        template = self.known.setdefault(name, Template("t" + secrets.token_hex(9), name))
        id = secrets.token_hex(16)
        self._builds[id] = Build(template)
        about = {"names": [name], "aliases": [name], "tags": ["default"], "public": False}
        return {"templateID": template.id, "buildID": id, **about}

    def link(self, hash: str, url: str) -> dict[str, Any]:
        """GET /templates/ID/files/HASH"""
        return {"present": hash in self._uploads, "url": f"{url}/uploads/{hash}"}

    def begin(self, build_id: str, order: dict[str, Any]) -> None:
        """POST /v2/templates/ID/builds/BUILD"""
        build = self._build(build_id)
        build.status = "building"
        task = asyncio.ensure_future(self._play(build, order))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def status(self, build_id: str, num_seen: int) -> dict[str, Any]:
        """GET /templates/ID/builds/BUILD/status"""
        build = self._build(build_id)
        reason = {"reason": {"message": build.reason}} if build.reason else {}
        lines = build.log[num_seen : num_seen + PAGE]
        about = {"templateID": build.template.id, "buildID": build_id, "status": build.status}
        return {**about, "logs": [], "logEntries": lines, **reason}

    def _build(self, id: str) -> Build:
        if id not in self._builds:
            raise Unknown(f"build {id} not found")
        return self._builds[id]

    async def _play(self, build: Build, order: dict[str, Any]) -> None:
        self.num_built += 1
        try:
            files = await self._built(build, order)
        except BuildFailed as error:
            build.reason, build.status = str(error), "error"
        else:
            build.template.files, build.status = files, "ready"

    async def _built(self, build: Build, order: dict[str, Any]) -> bytes:
        """Run the steps; return the root that they leave."""
        base = b""
        if name := order.get("fromTemplate"):
            try:
                base = self.find(name).files or b""
            except Unknown as error:
                raise BuildFailed(str(error)) from None
        elif order["fromImage"] not in IMAGES:
            raise BuildFailed(f"failed to pull image '{order['fromImage']}': not found")
        box = await started(Box("build", "", order, float("inf")), base)
        steps = order.get("steps", [])
        try:
            for number, step in enumerate(steps, 1):
                build.say(f"[builder {number}/{len(steps)}] {step['type']} {step['args'][0]}")
                await self._step(build, box, step)
            return await told(box, ["/bin/sh", "-c", _SAVE])
        finally:
            box.kill()

    async def _step(self, build: Build, box: Box, step: dict[str, Any]) -> None:
        if step["type"] == "COPY":
            (source, target, user, mode), data = step["args"], self._uploads[step["filesHash"]]
            assert (user, mode, source.count("/")) == ("root", "", 0), step
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                content = tar.extractfile(source)
                assert content is not None
                script = 'mkdir -p "$(dirname "$0")" && cat > "$0"'
                await told(box, ["/bin/sh", "-c", script, target], content.read())
        elif step["type"] == "RUN":
            command, *user = step["args"]
            build.say((await told(box, ["/bin/bash", "-l", "-c", command], user=user[0])).decode())
        else:
            raise BuildFailed(f"the fake has no step {step['type']}")


async def started(box: Box, files: bytes) -> Box:
    """The machine with the files of a template."""
    if files:
        await told(box, ["/bin/tar", "-xf", "-", "-C", "/"], files)
    return box


async def told(box: Box, argv: list[str], data: bytes = b"", *, user: str = "root") -> bytes:
    """The output of a program in the machine, which must succeed."""
    cwd = "/" if user == "root" else "/home/user"
    child = box.commands.pop(await box.spawn(argv, user=user, cwd=cwd, stdin=True))
    output, complaint = await child.communicate(data)
    if child.returncode:
        said = (complaint or output).decode("utf-8", "replace")
        raise BuildFailed(f"exit status {child.returncode}: {output.decode()}{said}")
    return output
