"""Builds of images that take long or fail, while other episodes go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor.env import HarborEnv
from arl_plan.clock import run_virtual
from arl_sandboxes.local import LocalBackend

from agentgym_rl.core import ImageError
from agentgym_rl.gym import Image, ImageRecipe, SandboxBackend
from benchmarks._kills import played

from .kit import DOCKERFILE, written

LIMIT_S = 600.0
SLOW = {"Dockerfile": DOCKERFILE + b"RUN sleep 3600\n", "repo/README.md": b"slow\n"}
FAILING = {"Dockerfile": DOCKERFILE + b"RUN date +%N; exit 3\n", "repo/README.md": b"bad\n"}
CHANGES: dict[str, dict[str, Any]] = {
    "quick": {},
    "slow": {"name": "slow", "environment": SLOW},
    "failing": {"name": "failing", "environment": FAILING},
}


@pytest.fixture
def world(tmp_path: Path) -> LocalBackend:
    backend = LocalBackend(slots=4, image_cache=str(tmp_path / "images"))
    if not asyncio.run(backend.probe()).capabilities.images:
        pytest.skip("the local sandbox has no images on this machine")
    return backend


class LoggedSteps(logging.Handler):
    """The steps of builds as they are logged, each of which may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._new = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._new.set()

    async def until(self, words: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not any(words in line for line in self.lines):
                self._new.clear()
                await self._new.wait()


async def episode(backend: SandboxBackend, folder: Path, name: str) -> float:
    """Play the solution of a task; return its reward."""
    path = folder / name
    source = str(path if path.exists() else written(path, **CHANGES[name]))
    task = HarborEnv.task_source("train", seed=0, source=source)[0]
    return (await played({"source": source}, task, backend)).reward


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_episodes_do_not_wait_for_a_build(
    world: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl_envs.harbor.env.LOG_AFTER_S", 0.0)
    log = logging.getLogger("arl_envs.harbor.env")
    log.setLevel(logging.INFO)
    told = LoggedSteps()
    log.addHandler(told)

    async def scenario() -> list[float]:
        async with world:
            building = [asyncio.ensure_future(episode(world, tmp_path, "slow")) for _ in range(2)]
            await told.until("slow: step 3 of 3: RUN sleep 3600")
            async with asyncio.timeout(LIMIT_S):
                rewards = [await episode(world, tmp_path, "quick") for _ in range(2)]
            assert not any(each.done() for each in building)
            for each in building:
                each.cancel()
            await asyncio.wait(building)
            return rewards

    try:
        assert asyncio.run(scenario()) == [1.0, 1.0]
    finally:
        log.removeHandler(told)
    assert len([line for line in told.lines if "RUN sleep" in line]) == 1  # shared by both
    left = sorted(path.suffix for path in (tmp_path / "images").iterdir())
    assert left == ["", ".lock"]  # the quick task's


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_build_that_fails_is_named_and_not_tried_again(
    world: LocalBackend, tmp_path: Path
) -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        async with world:
            for _ in range(3):
                with pytest.raises(ImageError) as caught:
                    await episode(world, tmp_path, "failing")
                said.append(str(caught.value))
            assert await episode(world, tmp_path, "quick") == 1.0
        return said

    first, *others = asyncio.run(scenario())
    assert first.startswith("failing: Dockerfile line 4: RUN date +%N; exit 3: ")
    assert others == [first, first]  # the nanoseconds, too


class Building(LocalBackend):
    """A backend whose builds have steps of the given virtual seconds, and then fail."""

    def __init__(self, *steps_s: float) -> None:
        super().__init__()
        self._steps_s = steps_s

    async def prepare(
        self,
        recipe: ImageRecipe,
        *,
        timeout_s: float = 600.0,
        report: Callable[[str], None] | None = None,
    ) -> Image:
        assert report is not None
        for number, seconds in enumerate(self._steps_s, 1):
            report(f"{recipe.name}: step {number}")
            await asyncio.sleep(seconds)
        raise ImageError("the end of the test")


@pytest.mark.parametrize(
    ("steps_s", "said"),
    [
        ((0.5, 0.5, 0.5), []),
        ((0.5, 60.0, 60.0), ["image: quick: step 2", "image: quick: step 3"]),
    ],
)
def test_progress_is_said_after_two_seconds(
    steps_s: tuple[float, ...],
    said: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # virtual time waits for no thread
    caplog.set_level(logging.INFO, "arl_envs.harbor.env")
    with pytest.raises(ImageError):
        run_virtual(episode(Building(*steps_s), tmp_path, "quick"))
    assert [line for line in caplog.messages if line.startswith("image:")] == said
