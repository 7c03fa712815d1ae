"""The verification: the tests of a task, in a fresh sandbox of its image with the agent's files.

The agent has ended by then: its sandbox is closed, and the host has collected its files. The tests
are copied in last, and the reward file is read once every process has ended. A verification without
a reward, or with 0, counts as the agent's failure if the solution of the task gets its reward, else
as a failure of infrastructure: many tests write 0 if a tool that they install is missing.

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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from agentgym_rl import InfraError, Sandbox, ToolError
from agentgym_rl.gym import ExecResult, Image, Limits, SandboxBackend
from agentgym_rl.gym.sandbox_records import Status
from agentgym_rl.runtime import LruDict, Repeated

from . import oracle
from .changes import Changes, patch_of
from .config import Artifact, TaskConfig, resolved
from .hooks import Why, path_without
from .proof import Terms, isolated_env, terms_of_solution
from .rewards import OutOfRange, Tampered, number_in, reward_of, rewards_of
from .rules import PUBLISHED, Rules, is_below
from .task import HarborTask
from .terminal import Terminal
from .transfer import apply, put
from .tree import TooMuch, Tree, image_tree, known_tree, read_tree
from .verdict import VerifierResult, Work

CREATE_TIMEOUT_S = 600.0
"""The longest wait for a sandbox, while other episodes use all of them."""
TESTS, LOGS = "/tests", "/logs/verifier"
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
"""The command of the tests: a script without #! runs in bash if the image has it, as in Harbor's
own runner."""


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
        self._rules = Rules(task, config, image, tests_image)
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

    async def of_sandbox(self, sandbox: Sandbox | None) -> VerifierResult:
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
        except TooMuch as error:
            verdict = VerifierResult("too_large", detail=f"the work folder has {error}")
            await self._proven(verdict)
            return self._priced(verdict)
        known = _TERMS.use(self._task.digest)
        terms = known or self._first_terms
        verdict = await self._graded(work, terms)
        is_all_clear = known is not None and not known.problem
        if not is_all_clear and self._may_be_ours(verdict):
            proven = await self._proven(verdict)
            verdict = verdict if proven == terms else await self._graded(work, proven)
        return self._priced(verdict)

    def _priced(self, verdict: VerifierResult) -> VerifierResult:
        """Return the verdict; one without a reward gets the lowest reward."""
        if verdict.status in ("ok", "wrong"):
            return verdict
        return replace(verdict, reward=min(self._config.reward_range[0], 0.0))

    async def _graded(self, work: Work | None, terms: Terms) -> VerifierResult:
        try:
            return await self._grade(work, terms)
        except TooMuch as error:
            return VerifierResult("too_large", detail=f"the work folder has {error}")

    def _may_be_ours(self, verdict: VerifierResult) -> bool:
        """Return whether a verdict proves nothing until the solution has received its reward."""
        if not verdict.has_reward:
            return True
        strict = verdict.is_isolated or any(why.is_doubtful for why in verdict.dropped.values())
        is_partial = verdict.reward < self._config.reward_range[1] and strict
        is_short = self._is_unpaid(verdict) or is_partial
        return verdict.status == "wrong" and is_short and self._can_be_solved

    @property
    def _can_be_solved(self) -> bool:
        """Return whether a reward of 0 proves nothing yet: generated tasks are known to be
        sound."""
        return bool(self._task.solution) and not self._config.is_generated

    def _is_unpaid(self, verdict: VerifierResult) -> bool:
        """Return whether a reward is one that tests also give if they cannot work: 0, or the
        lowest."""
        low, full = self._config.reward_range
        return verdict.reward <= (max(low, 0.0) if full > 0 else low)

    @property
    def _first_terms(self) -> Terms:
        """Return the terms of a task whose solution was not verified yet."""
        return Terms(is_isolated=self._can_be_solved)

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
        dropped = await asyncio.to_thread(self._rules.hooks_among, files, outside)
        kept = {path: data for path, data in files.items() if path not in dropped}
        return Work(tree, kept, dropped)

    def _sources(self) -> list[str]:
        """Return the absolute paths of the artifacts."""
        named = [
            posixpath.normpath(posixpath.join(self._image.work_dir, each.source))
            for each in self._config.artifacts
        ]
        return named if self._config.is_generated else [*named, PUBLISHED]

    def _is_work(self, path: str) -> bool:
        return PurePosixPath(path).is_relative_to(self._image.work_dir)

    async def _grade(self, work: Work | None, terms: Terms) -> VerifierResult:
        """Run the tests on the agent's files; None: on the image as it is."""
        begun = time.perf_counter()
        key = (self._task.digest, terms)
        untouched, dropped = _UNTOUCHED.use(key), await self._dropped_of_image(work, terms)
        if untouched is not None and dropped is not None:
            return replace(untouched, dropped=dropped)
        grade = self._separate if self._config.is_separate else self._shared
        verdict, changes, base = await grade(work, terms)
        verdict = replace(
            verdict,
            patch=await asyncio.to_thread(patch_of, changes, base),
            dropped=dict(sorted({**changes.dropped, **(work.dropped if work else {})}.items())),
            duration_ms=1000 * (time.perf_counter() - begun),
        )
        if changes.empty and not (work and work.artifacts):
            _UNTOUCHED[key] = verdict
        return verdict

    async def _dropped_of_image(self, work: Work | None, terms: Terms) -> Mapping[str, Why] | None:
        """Return the agent's files that are left out if the rest is known to be the image's."""
        if work is None:
            return {}
        known = self._known()
        if known is None or work.artifacts:
            return None
        changes = await self._changes(work.tree, known, terms)
        return {**changes.dropped, **work.dropped} if changes.empty else None

    async def _shared(
        self, work: Work | None, terms: Terms
    ) -> tuple[VerifierResult, Changes, Tree]:
        """Run the tests in the task's image, with the work folder and the artifacts."""
        fresh = await self._created(self._image)
        async with fresh:
            base = await self._base(fresh)
            changes = Changes() if work is None else await self._changes(work.tree, base, terms)
            artifacts = {} if work is None else work.artifacts
            self._check_room(changes.size + sum(map(len, artifacts.values())))
            await apply(fresh, changes)
            await put(fresh, artifacts)
            return await self._run_tests(fresh, base, terms), changes, base

    async def _separate(
        self, work: Work | None, terms: Terms
    ) -> tuple[VerifierResult, Changes, Tree]:
        """Run the tests in their own image, with the artifacts alone."""
        base = self._known()
        if work is None or base is None:
            fresh = await self._created(self._image)
            async with fresh:
                base = await self._base(fresh)
                work = work or await self._collected(fresh)
        changes = await self._changes(work.tree, base, terms)
        given = dict(self._published(work, changes, base))
        self._check_room(changes.size + sum(map(len, work.artifacts.values())))
        fresh = await self._created(self._tests_image or self._image)
        async with fresh:
            named = [one for one in self._sources() if any(is_below(path, one) for path in given)]
            if named:
                cleared = await fresh.exec(["sh", "-c", _EMPTY, "sh", *named])
                if not cleared.ok:
                    raise InfraError(
                        f"task {self._task.name}: the artifacts have no room in the image of the "
                        f"tests: {cleared.stderr_text[-DETAIL_CHARS:]}"
                    )
                await put(fresh, given)
            return await self._run_tests(fresh, base, terms), changes, base

    def _published(self, work: Work, changes: Changes, base: Tree) -> Iterator[tuple[str, bytes]]:
        """Yield the absolute paths and contents of the artifacts, the image's files in place of
        what is left out."""
        folder = self._image.work_dir
        gone = set(changes.removed)
        final = {path: data for path, data in base.files.items() if path not in gone}
        whole = {posixpath.join(folder, path): data for path, data in final.items()}
        whole |= {posixpath.join(folder, path): data for path, data in changes.written.items()}
        artifacts = [*self._config.artifacts, Artifact(source=PUBLISHED)]
        for path, data in (whole | dict(work.artifacts)).items():
            if any(each.has(path, folder) for each in artifacts):
                yield path, data

    def _known(self) -> Tree | None:
        """Return the image's work folder if it is remembered."""
        return known_tree(self._image, around=not self._config.is_generated)

    async def _base(self, fresh: Sandbox) -> Tree:
        """Return the image's work folder; `fresh` is a sandbox of the image.

        Raises:
            InfraError: it is too large to be played, whatever the agent does.
        """
        try:
            return await image_tree(self._image, fresh, around=not self._config.is_generated)
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

    async def _changes(self, tree: Tree, base: Tree, terms: Terms) -> Changes:
        return await asyncio.to_thread(self._rules.changes, tree, base, terms)

    async def _run_tests(self, sandbox: Sandbox, base: Tree, terms: Terms) -> VerifierResult:
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
        env = self._rules.tests_env
        if "PATH" in env:
            env["PATH"] = path_without(env, self._image.work_dir)
        is_isolated = self._rules.is_isolated(base, terms)
        if is_isolated:
            env |= isolated_env(env, self._image.work_dir, TESTS)
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
            return VerifierResult(
                "tampered", detail="the reward file has not the nonce of the tests"
            )
        except OutOfRange as error:
            _warnings.warn("task %s: %s", self._task.name, error, why=self._task.name)
            return VerifierResult("no_reward", detail=_named(str(error), detail))
        except (OSError, ValueError) as error:
            return VerifierResult("no_reward", detail=_named(str(error), detail))
        status = "ok" if reward >= self._config.reward_range[1] else "wrong"
        return VerifierResult(status, reward, rewards, detail, is_isolated=is_isolated)

    async def _rewards(self, sandbox: Sandbox, nonce: str) -> dict[str, float]:
        """Return the numbers of the reward file.

        Raises:
            OSError, ValueError: there is none, or it holds no finite numbers.
            Tampered: it does not have the nonce that the task's tests write.
        """
        try:
            data = await sandbox.read_file(f"{LOGS}/reward.json", max_bytes=MAX_REWARD_BYTES)
        except FileNotFoundError:
            if self._config.needs_nonce:
                raise
            text = await sandbox.read_file(f"{LOGS}/reward.txt", max_bytes=MAX_REWARD_BYTES)
            return {"reward": number_in(text.decode())}
        return rewards_of(data, nonce if self._config.needs_nonce else None)

    async def _proven(self, verdict: VerifierResult) -> Terms:
        """Return the terms on which the tests give the solution its reward: a missing reward is
        then the agent's failure.

        Raises:
            InfraError: they do not; or they give no reward for the untouched image, if the task has
                no solution.
        """
        terms = _TERMS.use(self._task.digest)
        if terms is None:
            try:
                work, failed = await self._solved()
                terms = await terms_of_solution(
                    lambda each: self._graded(work, each),
                    self._first_terms,
                    must_pay=self._can_be_solved,
                    full=self._config.reward_range[1],
                    is_unpaid=self._is_unpaid,
                )
                terms = replace(terms, problem=terms.problem and terms.problem + failed)
            except TooMuch as error:
                terms = Terms(problem=f"too_large: the work folder has {error}")
            _TERMS[self._task.digest] = terms
        if terms.problem:
            what = "its solution" if self._task.solution else "its untouched image"
            raise InfraError(
                f"task {self._task.name}: the tests end with {verdict.status!r} "
                f"({verdict.detail}), and pay nothing for {what} either ({terms.problem}): "
                "tests/test.sh or the solution cannot work here; --env.options.exclude leaves "
                "tasks out"
            )
        return terms

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
_UNTOUCHED: LruDict[tuple[str, Terms], VerifierResult] = LruDict(MAX_REMEMBERED)
"""The verdict on the untouched image, by the digest of the task and the terms."""
_TERMS: LruDict[str, Terms] = LruDict(MAX_REMEMBERED)
"""The terms on which the tests of a task give its solution the reward, by the task's digest."""


def _ended(result: ExecResult, detail: str) -> VerifierResult:
    status = "timeout" if result.status is Status.TIMEOUT else "crash"
    return VerifierResult(status, detail=_named(result.status.value, detail))


def _named(why: str, output: str) -> str:
    """Return a reason with the end of the tests' output, up to the size limit."""
    room = max(0, DETAIL_CHARS - len(why))
    return f"{why[:DETAIL_CHARS]}; {output[-room:] if room else ''}"


async def _tail(sandbox: Sandbox) -> str:
    try:
        data = await sandbox.read_file(OUTPUT, max_bytes=MAX_OUTPUT_BYTES)
    except OSError as error:
        return f"no output of the tests: {error}"
    return data[-4 * DETAIL_CHARS :].decode("utf-8", "replace").strip()[-DETAIL_CHARS:]
