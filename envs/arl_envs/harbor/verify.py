"""The verification: the tests of a task, in a fresh sandbox of its image with the agent's files.

The agent is gone by then: its sandbox is closed, and the host has collected its files. Tests come
in last, and the reward file is read once every process is dead. A verification without a reward,
or with 0, is the agent's doing if the solution of the task is paid, else a failure of
infrastructure: many tests write 0 if a tool that they install is missing.

    shared     the task's image, with the agent's work folder and its artifacts
    separate   the image of tests/Dockerfile (or else the task's), with the artifacts alone
"""

from __future__ import annotations

import asyncio
import logging
import math
import posixpath
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from agentgym_rl import InfraError, Sandbox, ToolError
from agentgym_rl.gym.sandbox import ExecResult, Image, Limits, SandboxBackend, Status
from agentgym_rl.runtime.log import Repeated
from agentgym_rl.runtime.lru_dict import LruDict

from . import oracle
from .config import Artifact, TaskConfig, resolved
from .hooks import Hooks, bins_of, path_without
from .rewards import OutOfRange, Tampered, number_of, reward_of, rewards_of
from .task import HarborTask
from .terminal import Terminal
from .transfer import (
    Changes,
    TooMuch,
    Tree,
    apply,
    changes_of,
    image_tree,
    known_tree,
    patch_of,
    put,
    read_tree,
)

CREATE_TIMEOUT_S = 600.0
"""The longest wait for a sandbox, while other episodes use all of them."""
TESTS, LOGS, PUBLISHED = "/tests", "/logs/verifier", "/logs/artifacts"
"""PUBLISHED is the folder of which every task's tests get the agent's files, without being told."""
OUTPUT = f"{LOGS}/test-stdout.txt"
MAX_REWARD_BYTES, MAX_OUTPUT_BYTES = 64 << 10, 16 << 20
DETAIL_CHARS = 400
ROOM_MB = 64
"""The disk of a verification beyond the agent's: the tests and their logs."""
_FOLDERS = f"{LOGS} /logs/agent {PUBLISHED} {TESTS}"
_PREPARE = f"rm -rf {LOGS}/reward.txt {LOGS}/reward.json && mkdir -p {_FOLDERS}"
_EMPTY = 'for f; do if [ -d "$f" ]; then find "$f" -mindepth 1 -delete; else rm -f "$f"; fi; done'
_RUN = (
    f"chmod +x {TESTS}/test.sh && exec > {OUTPUT} 2>&1 && "
    f"if command -v bash > /dev/null; then exec bash -c 'exec {TESTS}/test.sh'; fi && "
    f"exec {TESTS}/test.sh"
)
"""A script without #! is one for bash if the image has it, as in Harbor's own runner."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification."""

    status: str
    """ok (the full reward), wrong (less), tampered (no nonce in the reward file), timeout, crash
    (the tests were ended by a limit), no_reward (no reward file, or no reward of the declared range
    in it), too_large
    (more files than are taken over)."""
    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """The numbers of the reward file."""
    detail: str = ""
    """The end of the tests' output, or the problem."""
    patch: str = ""
    """The agent's changes of text files, as a unified diff."""
    dropped: Sequence[str] = ()
    """The agent's files that were left out: hooks, and files that could not be read."""
    duration_ms: float = 0.0

    @property
    def has_reward(self) -> bool:
        return self.status in ("ok", "wrong", "tampered")


@dataclass(frozen=True, slots=True)
class Work:
    """The agent's files, as the host has collected them."""

    tree: Tree
    """The work folder."""
    artifacts: Mapping[str, bytes]
    """The files elsewhere that the tests get, by absolute path."""
    dropped: Sequence[str] = ()
    """The hooks among the files elsewhere, which are left out."""


class Verifier:
    """The verifier of one task in the sandboxes of a started backend.

    Args:
        image: The task's image.
        tests_image: The image of the tests, if they have one of their own.
        limits: The agent's.
    """

    def __init__(
        self,
        sandboxes: SandboxBackend,
        *,
        task: HarborTask,
        config: TaskConfig,
        image: Image,
        tests_image: Image | None,
        limits: Limits,
    ) -> None:
        self._sandboxes = sandboxes
        self._task, self._config, self._image = task, config, image
        self._tests_image = tests_image
        own = config.verifier.environment
        wall_s = max(limits.wall_s, config.verifier.timeout_sec)
        disk_mb = (own and own.storage_mb) or limits.disk_mb
        self._limits = replace(
            limits,
            wall_s=wall_s,
            cpu_s=max(limits.cpu_s, math.ceil(wall_s)),
            memory_mb=(own and own.memory_mb) or limits.memory_mb,
            disk_mb=disk_mb + ROOM_MB,
        )
        self._agent_limits = limits

    async def of_sandbox(self, sandbox: Sandbox | None) -> Verdict:
        """Collect the agent's files from its sandbox, close it, and verify them.

        A work folder that no call has changed gets the verdict on the image itself, which is found
        once in this process.

        Args:
            sandbox: The agent's; None if it has made no call.

        Raises:
            InfraError: a sandbox failed, or the tests give no reward for the solution either.
        """
        try:
            try:
                work = None if sandbox is None else await self._collected(sandbox)
            finally:
                if sandbox is not None:
                    await sandbox.close()
            verdict = await self._grade(work)
        except TooMuch as error:
            verdict = Verdict("too_large", detail=f"the work folder has {error}")
        is_wrong = verdict.status == "wrong" and self._is_unpaid(verdict)
        doubtful = is_wrong and self._can_be_solved
        if doubtful or not verdict.has_reward:
            await self._blame(verdict)
        if verdict.status in ("ok", "wrong"):
            return verdict
        return replace(verdict, reward=min(self._config.reward_range[0], 0.0))

    @property
    def _can_be_solved(self) -> bool:
        """Return whether a reward of 0 says nothing yet: generated tasks are known to be sound."""
        return bool(self._task.solution) and not self._config.is_generated

    def _is_unpaid(self, verdict: Verdict) -> bool:
        """Return whether a reward is what tests give that could not work: 0, or the least."""
        low, full = self._config.reward_range
        return verdict.reward <= (max(low, 0.0) if full > 0 else low)

    async def _collected(self, sandbox: Sandbox) -> Work:
        """Return the agent's files; no program may run that could change them.

        Raises:
            TooMuch: the work folder is too large.
        """
        tree = await read_tree(sandbox)
        outside = [each for each in self._sources() if not self._is_work(each)]
        if not outside:
            return Work(tree, {})
        files = (await sandbox.exec(["true"], collect=outside)).files
        kept = await asyncio.to_thread(self._without_hooks, files, outside)
        return Work(tree, kept, tuple(files.keys() - kept.keys()))

    def _without_hooks(
        self, files: Mapping[str, bytes], artifacts: Sequence[str]
    ) -> dict[str, bytes]:
        """Return the files below artifacts that no program loads by itself; an artifact that is a
        file is what the task asks for."""
        hooks = Hooks((), keep=self._config.kept)
        kept: dict[str, bytes] = {}
        for path, data in files.items():
            below = [PurePosixPath(path).relative_to(one) for one in artifacts if _below(path, one)]
            if path != PUBLISHED and not all(hooks.is_hook(str(each)) for each in below):
                kept[path] = data
        return kept

    def _sources(self) -> list[str]:
        """Return the absolute paths of the artifacts."""
        named = [
            posixpath.normpath(posixpath.join(self._image.work_dir, each.source))
            for each in self._config.artifacts
        ]
        return named if self._config.is_generated else [*named, PUBLISHED]

    def _is_work(self, path: str) -> bool:
        return PurePosixPath(path).is_relative_to(self._image.work_dir)

    async def _grade(self, work: Work | None) -> Verdict:
        """Run the tests on the agent's files; None: on the image as it is."""
        begun = time.perf_counter()
        untouched = _UNTOUCHED.use(self._task.digest)
        if untouched is not None and await self._is_image(work):
            return untouched
        grade = self._separate if self._config.is_separate else self._shared
        verdict, changes, base = await grade(work)
        verdict = replace(
            verdict,
            patch=await asyncio.to_thread(patch_of, changes, base),
            dropped=tuple(sorted({*changes.dropped, *(work.dropped if work else ())})),
            duration_ms=1000 * (time.perf_counter() - begun),
        )
        if changes.empty and not (work and work.artifacts):
            _UNTOUCHED[self._task.digest] = verdict
        return verdict

    async def _is_image(self, work: Work | None) -> bool:
        """Return whether the agent's files are known to be those of the image."""
        if work is None:
            return True
        known = self._known()
        if known is None or work.artifacts:
            return False
        return (await self._changes(work.tree, known)).empty

    async def _shared(self, work: Work | None) -> tuple[Verdict, Changes, Tree]:
        """Run the tests in the task's image, with the work folder and the artifacts."""
        fresh = await self._created(self._image)
        async with fresh:
            base = await self._base(fresh)
            changes = Changes() if work is None else await self._changes(work.tree, base)
            artifacts = {} if work is None else work.artifacts
            self._check_room(changes.size + sum(map(len, artifacts.values())))
            await apply(fresh, changes)
            await put(fresh, artifacts)
            return await self._run_tests(fresh), changes, base

    async def _separate(self, work: Work | None) -> tuple[Verdict, Changes, Tree]:
        """Run the tests in their own image, with the artifacts alone."""
        base = self._known()
        if work is None or base is None:
            fresh = await self._created(self._image)
            async with fresh:
                base = await self._base(fresh)
                work = work or await self._collected(fresh)
        changes = await self._changes(work.tree, base)
        given = dict(self._published(work, changes.dropped))
        self._check_room(changes.size + sum(map(len, work.artifacts.values())))
        fresh = await self._created(self._tests_image or self._image)
        async with fresh:
            named = [one for one in self._sources() if any(_below(path, one) for path in given)]
            if named:
                cleared = await fresh.exec(["sh", "-c", _EMPTY, "sh", *named])
                if not cleared.ok:
                    raise InfraError(
                        f"task {self._task.name}: the artifacts have no room in the image of the "
                        f"tests: {cleared.stderr_text[-DETAIL_CHARS:]}"
                    )
                await put(fresh, given)
            return await self._run_tests(fresh), changes, base

    def _published(self, work: Work, dropped: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the absolute paths and contents of the artifacts, hooks left out."""
        folder = self._image.work_dir
        left_out = {posixpath.join(folder, path) for path in dropped}
        whole = {posixpath.join(folder, path): data for path, data in work.tree.files.items()}
        artifacts = [*self._config.artifacts, Artifact(source=PUBLISHED)]
        for path, data in (whole | dict(work.artifacts)).items():
            if path not in left_out and any(each.has(path, folder) for each in artifacts):
                yield path, data

    def _known(self) -> Tree | None:
        """Return the image's work folder if it is remembered."""
        return known_tree(self._image, modules=not self._config.is_generated)

    async def _base(self, fresh: Sandbox) -> Tree:
        """Return the image's work folder; `fresh` is a sandbox of the image.

        Raises:
            InfraError: it is too large to be played, whatever the agent does.
        """
        try:
            return await image_tree(self._image, fresh, modules=not self._config.is_generated)
        except TooMuch as error:
            raise InfraError(
                f"task {self._task.name}: the work folder of its image has {error}; move what the "
                "agent does not change to another folder"
            ) from error

    def _check_room(self, num_bytes: int) -> None:
        """Raise an error if the agent's files are larger than its disk, which files with holes can
        be.

        Raises:
            TooMuch: they are.
        """
        if num_bytes > self._agent_limits.disk_mb << 20:
            raise TooMuch(f"more than the {self._agent_limits.disk_mb} MB of the task's disk")

    async def _created(self, image: Image) -> Sandbox:
        return await self._sandboxes.create(
            limits=self._limits, image=image, timeout_s=CREATE_TIMEOUT_S
        )

    async def _changes(self, tree: Tree, base: Tree) -> Changes:
        return await asyncio.to_thread(self._compared, tree, base)

    def _compared(self, tree: Tree, base: Tree) -> Changes:
        bins = bins_of(self._image.env, self._image.work_dir)
        modules = base.modules or ()
        hooks = Hooks(base.names, keep=self._config.kept, bins=bins, modules=modules)
        return changes_of(tree, base, hooks, work_dir=self._image.work_dir)

    async def _run_tests(self, sandbox: Sandbox) -> Verdict:
        bundled = self._tests_image is not None and "Dockerfile" in self._task.tests
        prepare = _PREPARE if self._tests_image is not None else f"rm -rf {TESTS} && {_PREPARE}"
        prepared = await sandbox.exec(["sh", "-c", prepare])
        if not prepared.ok:
            raise InfraError(
                f"task {self._task.name}: its image has no room for the tests: "
                f"{prepared.stderr_text[-DETAIL_CHARS:]}"
            )
        if not bundled:
            tests = {f"{TESTS}/{path}": data for path, data in self._task.tests.items()}
            await sandbox.write_files(tests)
        nonce = secrets.token_hex(16)
        image, place = self._tests_image or self._image, self._config.tests_place
        env = resolved(place.env) | resolved(self._config.verifier.env)
        given = {**image.env, **env}
        if (path := path_without(given, self._image.work_dir)) != given.get("PATH", ""):
            env["PATH"] = path
        result = await sandbox.exec(
            ["sh", "-c", _RUN],
            stdin=f"{nonce}\n".encode(),
            env=env,
            limits=replace(self._limits, wall_s=self._config.verifier.timeout_sec),
        )
        detail = await _tail(sandbox)
        if result.status not in (Status.OK, Status.ERROR):
            return _ended(result, detail)
        try:
            rewards = await self._rewards(sandbox, nonce)
            reward = reward_of(rewards, self._config.reward_range)
        except Tampered:
            return Verdict("tampered", detail="the reward file has not the nonce of the tests")
        except OutOfRange as error:
            _warnings.warn("task %s: %s", self._task.name, error, why=self._task.name)
            return Verdict("no_reward", detail=_named(str(error), detail))
        except (OSError, ValueError) as error:
            return Verdict("no_reward", detail=_named(str(error), detail))
        _, full = self._config.reward_range
        return Verdict("ok" if reward >= full else "wrong", reward, rewards, detail)

    async def _rewards(self, sandbox: Sandbox, nonce: str) -> dict[str, float]:
        """Return the numbers of the reward file.

        Raises:
            OSError, ValueError: there is none, or it holds no finite numbers.
            Tampered: it has not the nonce that the task's tests write.
        """
        try:
            data = await sandbox.read_file(f"{LOGS}/reward.json", max_bytes=MAX_REWARD_BYTES)
        except FileNotFoundError:
            if self._config.needs_nonce:
                raise
            text = await sandbox.read_file(f"{LOGS}/reward.txt", max_bytes=MAX_REWARD_BYTES)
            return {"reward": number_of("reward.txt", text.decode())}
        return rewards_of(data, nonce if self._config.needs_nonce else None)

    async def _blame(self, verdict: Verdict) -> None:
        """Return if the tests pay the solution: it is the agent's doing that they pay nothing.

        Raises:
            InfraError: they do not; or they give no reward for the untouched image, if the task has
                no solution.
        """
        why = _SOUND.use(self._task.digest)
        if why is None:
            said = ""
            try:
                work, said = await self._solved()
                found = await self._grade(work)
            except TooMuch as error:
                found = Verdict("too_large", detail=f"the work folder has {error}")
            sound = found.has_reward and (not self._is_unpaid(found) or not self._can_be_solved)
            why = _SOUND[self._task.digest] = (
                "" if sound else f"{found.status}: {found.detail}{said}"
            )
        if why:
            what = "its solution" if self._task.solution else "its untouched image"
            raise InfraError(
                f"task {self._task.name}: the tests end with {verdict.status!r} "
                f"({verdict.detail}), and pay nothing for {what} either ({why}): tests/test.sh "
                "or the solution cannot work here; --env.options.exclude leaves tasks out"
            )

    async def _solved(self) -> tuple[Work | None, str]:
        """Return the files after the solution, and the problem that it had; None if the task has no
        solution."""
        if not self._task.solution:
            return None, ""
        sandbox = await self._sandboxes.create(
            limits=self._agent_limits, image=self._image, timeout_s=CREATE_TIMEOUT_S
        )
        async with sandbox:
            terminal = Terminal(
                sandbox,
                env=resolved(self._config.environment.env),
                output_chars=1000,
                command_timeout_s=self._agent_limits.wall_s,
                total_s=self._agent_limits.wall_s,
            )
            try:
                await oracle.play(terminal, self._task, self._config)
                await terminal.close()
                last = terminal.records[-1]
                failed = f"; its solution ends with {last.output[-DETAIL_CHARS:]}"
                return await self._collected(sandbox), "" if last.status == "ok" else failed
            except (ToolError, TooMuch) as error:
                raise InfraError(f"task {self._task.name}: its solution fails: {error}") from error


_warnings = Repeated(logging.getLogger(__name__))
MAX_REMEMBERED = 10_000
_UNTOUCHED: LruDict[str, Verdict] = LruDict(MAX_REMEMBERED)
"""The verdict on the untouched image, by the digest of the task."""
_SOUND: LruDict[str, str] = LruDict(MAX_REMEMBERED)
"""The reason that the tests of a task do not pay its solution ("": they do), by its digest."""


def _below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _ended(result: ExecResult, detail: str) -> Verdict:
    status = "timeout" if result.status is Status.TIMEOUT else "crash"
    return Verdict(status, detail=_named(result.status.value, detail))


def _named(why: str, output: str) -> str:
    """Return a reason with the end of the tests' output, as much as there is room for."""
    room = max(0, DETAIL_CHARS - len(why))
    return f"{why[:DETAIL_CHARS]}; {output[-room:] if room else ''}"


async def _tail(sandbox: Sandbox) -> str:
    try:
        data = await sandbox.read_file(OUTPUT, max_bytes=MAX_OUTPUT_BYTES)
    except OSError as error:
        return f"no output of the tests: {error}"
    return data[-4 * DETAIL_CHARS :].decode("utf-8", "replace").strip()[-DETAIL_CHARS:]
