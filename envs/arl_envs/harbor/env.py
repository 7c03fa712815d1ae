"""The harbor environment: an agent works in a terminal, and tests judge the files that it
leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from agentgym_rl import (
    ConfigError,
    EnvError,
    InfraError,
    Message,
    Sandbox,
    Step,
    Task,
    TaskSource,
    ToolEnv,
    tool,
)
from agentgym_rl.core import ImageError, Split
from agentgym_rl.gym import Image, ImageRecipe, Limits, OffTheClock

from . import oracle
from .config import ContainerKeys, Healthcheck, TaskConfig, read_config, resolved
from .options import Options
from .task import HarborTask
from .tasks import make_task, task_source
from .terminal import Terminal
from .verdict import VerifierResult
from .verify import CREATE_TIMEOUT_S, Verifier

log = logging.getLogger(__name__)

SYSTEM_PROMPT = (
    "You work in a Linux terminal. Use the tools to do the task; a message without a tool call "
    "ends it."
)
OUTPUT_BYTES = 4 << 20
"""The most output of a command that leaves the sandbox."""
OPEN_FILES = 1024
NO_WORK_DIRS = ("tests", "solution", "logs", "proc", "sys", "dev", "usr", "bin", "lib", "etc")
"""The first parts of paths that are no work folders."""
LOG_AFTER_S = 2.0
"""The seconds of a build after which its current step is logged, and each later one."""
STATUSES = ("ok", "wrong", "tampered", "timeout", "crash", "no_reward", "too_large")


class HarborEnv(ToolEnv):
    """An environment of tasks in Harbor's format; a message without tool calls is the end.

    The agent works in a sandbox of the task's image, started by its first tool call. At the end its
    files are copied into a fresh sandbox, where the tests run (`verify.py`) and determine the
    reward. `options` are the fields of `Options`.

    Every step's `info["commands"]` has its tool calls (`terminal.Record`); the last step's `info`
    has the verdict, and `info["patch"]` the agent's changes.

    Raises:
        TypeError: an option is unknown or out of range.
    """

    needs_sandboxes = True
    holds_sandboxes = True
    max_turns = 50
    max_concurrent_calls = 1  # calls share one shell
    step_timeout_s = 900.0  # commands; builds, waits for sandboxes and tests have own deadlines

    def __init__(self, **options: Any) -> None:
        self._options = Options(**options)
        self._harbor: HarborTask
        self._config: TaskConfig
        self._image: Image
        self._tests_image: Image | None
        self._sandbox: Sandbox | None = None
        self._terminal: Terminal | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return the tasks of `split`: a generator's, or those of a folder."""
        return task_source(split, seed=seed, options=Options(**options))

    def task_options(self) -> dict[str, Any]:
        return asdict(self._options)

    async def open_sandbox(self) -> Sandbox:
        """Return the agent's sandbox, started now if no call has started it before. It belongs to
        the environment, and ends with the episode.

        Raises:
            EnvError: there is no episode.
            SandboxError: it does not start.
        """
        if not self._playing or self.sandboxes is None:
            raise EnvError("no sandbox without an episode: call reset first")
        if self._sandbox is None:
            with OffTheClock():
                self._sandbox = await self.sandboxes.create(
                    limits=self._limits(), image=self._image, timeout_s=CREATE_TIMEOUT_S
                )
                if check := self._config.environment.healthcheck:
                    await self._healthy(self._sandbox, check)
        return self._sandbox

    async def begin(self, task: Task) -> list[Message]:
        await self._release()
        self._harbor = await asyncio.to_thread(make_task, task)
        try:
            self._config = read_config(
                self._harbor.config, name=self._harbor.name, offline=self._options.offline
            )
        except ConfigError as error:
            raise EnvError(str(error)) from error
        self._image = await self._prepared()
        self._tests_image = await self._built(verifier_recipe(self._harbor, self._config))
        prompt = f"{self._harbor.instruction.strip()}\n\nWork folder: {self._image.work_dir}"
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": prompt},
        ]

    @tool
    async def bash(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command in a shell that keeps its folder, variables and background processes.

        Args:
            command: The command, of any number of lines.
            timeout_s: The seconds after which it is interrupted.
        """
        return await (await self._hands()).bash(command, timeout_s)

    @tool
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace text in a file; an empty old creates the file.

        Args:
            path: The file, relative to the work folder or absolute.
            old: The text to replace, which must occur exactly once.
            new: The text in its place.
        """
        return await (await self._hands()).edit(path, old, new)

    async def step(self, action: Message) -> Step:
        """Run the tool calls of a message, or verify the agent's work if it has none.

        Raises:
            EnvError: there is no episode: before `reset`, or after its end.
            InfraError: a sandbox failed, so no reward is known.
        """
        step = await super().step(action)
        terminal = self._terminal
        if not step.terminated and terminal is not None and terminal.left_s <= 0:
            verdict = await self._verify()
            info = {**step.info, **self._info_of(verdict, "agent_timeout")}
            info["metrics"] = {**step.info["metrics"], **info["metrics"]}
            step = step._replace(reward=verdict.reward, truncated=True, info=info)
            self._playing = False
        step.info["commands"] = terminal.take_records() if terminal is not None else []
        return step

    async def finish(self, text: str) -> Step:
        verdict = await self._verify()
        return Step([], verdict.reward, True, False, self._info_of(verdict, "answer"))

    def solve(self) -> list[Message] | None:
        return oracle.messages_of(self._harbor, self._config) if self._playing else None

    async def close(self) -> None:
        await super().close()
        await self._release()

    # ------------------------------------------------------------------ the episode
    async def _hands(self) -> Terminal:
        """Return the terminal of the episode, opened now if this is the first call."""
        if self._terminal is None:
            self._terminal = Terminal(
                await self.open_sandbox(),
                env=resolved(self._config.environment.env),
                output_chars=self._options.output_chars,
                command_timeout_s=self._options.command_timeout_s,
                total_s=self._agent_s(),
            )
        return self._terminal

    async def _prepared(self) -> Image:
        """Return the image of the task, built at most once.

        Raises:
            ImageError: it cannot be built here.
            EnvError: it has no work folder.
        """
        image = await self._built(recipe_of(self._harbor, self._config))
        assert image is not None
        if image.work_dir == "/" or image.work_dir.split("/")[1] in NO_WORK_DIRS:
            raise EnvError(
                f"task {self._harbor.name}: its work folder is {image.work_dir!r}, which the "
                "verification cannot take over: write another WORKDIR in the Dockerfile, or "
                "environment.workdir in task.toml, such as /app"
            )
        return image

    async def _built(self, recipe: ImageRecipe | None) -> Image | None:
        assert self.sandboxes is not None
        if recipe is None:
            return None
        try:
            with OffTheClock(), _logged_after(LOG_AFTER_S) as report:
                return await self.sandboxes.prepare(
                    recipe, timeout_s=self._config.environment.build_timeout_sec, report=report
                )
        except ImageError as error:
            raise ImageError(f"{error}\n(--env.options.exclude leaves tasks out)") from error

    def _agent_s(self) -> float:
        return self._config.agent.timeout_sec or self._options.agent_timeout_s

    def _limits(self) -> Limits:
        part, options = self._config.environment, self._options
        disk_mb = part.storage_mb or options.disk_mb
        wall_s = max(self._agent_s(), options.command_timeout_s)
        return Limits(
            wall_s=wall_s,
            cpu_s=math.ceil(wall_s),
            memory_mb=part.memory_mb or options.memory_mb,
            processes=options.processes,
            disk_mb=disk_mb,
            file_mb=disk_mb,
            open_files=OPEN_FILES,
            output_bytes=OUTPUT_BYTES,
        )

    async def _healthy(self, sandbox: Sandbox, check: Healthcheck) -> None:
        """Wait until the task's own check of its environment succeeds.

        Raises:
            InfraError: it fails too often.
        """
        clock = asyncio.get_running_loop().time
        begun, failed = clock(), 0
        wall_s = min(check.timeout_sec, sandbox.limits.wall_s)
        limits = replace(sandbox.limits, wall_s=wall_s)
        while True:
            result = await sandbox.exec(["sh", "-c", check.command], limits=limits)
            if result.ok:
                return
            starting = clock() - begun < check.start_period_sec
            failed += not starting
            if failed >= check.retries:
                raise InfraError(
                    f"task {self._harbor.name}: its healthcheck failed {failed} times: "
                    f"{(result.stderr_text or result.stdout_text)[-300:]}"
                )
            await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)

    async def _verify(self) -> VerifierResult:
        assert self.sandboxes is not None
        verifier = Verifier(
            self.sandboxes,
            task=self._harbor,
            config=self._config,
            image=self._image,
            tests_image=self._tests_image,
            limits=self._limits(),
        )
        sandbox, self._sandbox = self._sandbox, None
        with OffTheClock():
            try:
                if self._terminal is not None:
                    await self._terminal.close()
            except BaseException:
                if sandbox is not None:
                    await sandbox.close()
                raise
            return await verifier.of_sandbox(sandbox)

    def _info_of(self, verdict: VerifierResult, stop_reason: str) -> dict[str, Any]:
        metrics = {name: value for name, value in verdict.metrics.items() if name != "reward"}
        counted = {f"verdict_{status}": float(status == verdict.status) for status in STATUSES}
        return {
            "stop_reason": stop_reason,
            "verifier": verdict.status,
            "verifier_detail": verdict.detail,
            "verifier_ms": round(verdict.duration_ms, 1),
            "reward_components": {**metrics, "tests": verdict.reward},
            "patch": verdict.patch,
            "dropped_files": {path: why.text for path, why in verdict.dropped.items()},
            "metrics": {
                "commands": self._terminal.num_calls if self._terminal is not None else 0,
                "dropped_files": len(verdict.dropped),
                **counted,
            },
        }

    async def _release(self) -> None:
        self._terminal = None
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


@contextlib.contextmanager
def _logged_after(seconds: float) -> Iterator[Callable[[str], None]]:
    """Yield a function that receives the steps of a build; those of a fast build are not logged."""
    present, is_slow = "", False

    def report(line: str) -> None:
        nonlocal present
        present = line
        if is_slow:
            log.info("image: %s", line)

    def late() -> None:
        nonlocal is_slow
        is_slow = True
        if present:
            report(present)

    timer = asyncio.get_running_loop().call_later(seconds, late)
    try:
        yield report
    finally:
        timer.cancel()


def recipe_of(task: HarborTask, config: TaskConfig) -> ImageRecipe:
    """Return the recipe of a task's image: its Dockerfile; or a published image, with the files of
    environment/ in the work folder."""
    return _recipe(task.name, task.environment, config.environment)


def verifier_recipe(task: HarborTask, config: TaskConfig) -> ImageRecipe | None:
    """Return the recipe of the image of separate tests; None: they run in the task's image."""
    place, own = config.tests_place, config.verifier.environment
    if not config.is_separate:
        return None
    if "Dockerfile" in task.tests:
        return _recipe(f"{task.name} (tests)", task.tests, place)
    if own is not None and own.docker_image:
        return _recipe(f"{task.name} (tests)", {}, own)
    if own is None or own.workdir in (None, config.environment.workdir):
        return None
    published = config.environment.docker_image
    return _recipe(task.name, task.environment, own.model_copy(update={"docker_image": published}))


def _recipe(name: str, files: Mapping[str, bytes], place: ContainerKeys) -> ImageRecipe:
    published = place.docker_image or ""
    workdir = f"WORKDIR {place.workdir}\n" if place.workdir else ""
    if "Dockerfile" in files:
        lines = files["Dockerfile"].rstrip() + f"\n{workdir}".encode()
        return ImageRecipe(name, {**files, "Dockerfile": lines})
    if not (files or workdir):
        return ImageRecipe(name, published=published)
    copy = "COPY environment/ ./\n" if files else ""
    lines = f"FROM {published}\n{workdir}{copy}".encode()
    inner = {f"environment/{path}": data for path, data in files.items()}
    return ImageRecipe(name, {**inner, "Dockerfile": lines})
