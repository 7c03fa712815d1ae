"""The command `arl reverify`: it reads a run, replays its episodes one by one, and reports the
differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.config import load_config
from agentgym_rl.core import (
    ConfigError,
    EpisodeError,
    InfraError,
    Message,
    Outcome,
    Task,
    Trajectory,
)
from agentgym_rl.gym import Env, Services, Step
from agentgym_rl.rollout import EpisodeEnv, env_spec, specimen
from agentgym_rl.rollout.episode import UNPAID
from agentgym_rl.rollout.factory import services
from agentgym_rl.rollout.retries import RETRY_AFTER_S
from agentgym_rl.runtime import new_file
from agentgym_rl.storage import EpisodeReader, config_of

_SAME = {"rel_tol": 1e-9, "abs_tol": 1e-9}
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of playing an episode again."""

    recorded: Trajectory
    reward: float | None = None
    """The reward of today; None: the episode could not be played again."""
    why: str = ""
    """The reason it could not be played again."""
    verifier: str = ""
    verifier_detail: str = ""
    """The verifier's detail of today, if it reports one."""
    divergence: str = ""
    """The first difference from the recording, rewards apart."""

    @property
    def changed(self) -> bool:
        """Return whether today's reward differs from the recorded one."""
        return self.reward is not None and not math.isclose(
            self.reward, self.recorded.reward, **_SAME
        )


@dataclass(frozen=True, slots=True)
class Replayer:
    """A player of recorded episodes, each in a new environment of `make_env`."""

    make_env: Callable[[], Env]
    services: Services
    timeout_s: float
    """The longest time for one episode."""
    max_retries: int
    """The number of retries of an episode after infrastructure failures."""

    async def replay(self, recorded: Trajectory, task: Task) -> Replay:
        """Play the episode; never raise for a failure of the environment."""
        if (why := not_replayable(recorded)) is not None:
            return Replay(recorded, why=why)
        for attempt in range(self.max_retries + 1):
            try:
                return await self._play(recorded, task)
            except InfraError as error:
                why = f"infrastructure: {error}"
                if attempt < self.max_retries:
                    await asyncio.sleep(RETRY_AFTER_S * 2**attempt)
            except EpisodeError as error:
                return Replay(recorded, why=f"the environment failed: {error}")
            except TimeoutError:
                return Replay(recorded, why=f"took more than {self.timeout_s:g} s")
        return Replay(recorded, why=why or "")

    async def _play(self, recorded: Trajectory, task: Task) -> Replay:
        env = EpisodeEnv(self.make_env(), task, self.services)
        told: dict[str, Any] = {}
        seen: list[list[Message]] = []
        try:
            async with asyncio.timeout(self.timeout_s):
                await env.start()
                seen.append((await env.reset())[0])
                for action in recorded.actions or ():
                    if env.terminated or env.truncated:
                        break
                    step: Step = await env.step(action)
                    seen.append(step.observation)
                    told |= step.info
        finally:
            await env.close()
        return Replay(
            recorded,
            # A judge of the group is not called again: its part is the recorded one.
            reward=env.reward + recorded.credit.episode_reward + (recorded.group_reward or 0.0),
            verifier=str(told.get("verifier", "")),
            verifier_detail=str(told.get("verifier_detail", "")),
            divergence=_divergence(recorded, env, seen),
        )


def not_replayable(recorded: Trajectory) -> str | None:
    """Return the reason why an episode cannot be verified; None if it can."""
    if not recorded.outcome.trains:
        return f"it has no reward, being {recorded.outcome.value}"
    if recorded.seats:
        return "it is a game of several seats, which are not played again"
    if recorded.actions is None:
        return "its actions were not recorded (an earlier version of this package made it)"
    return None


def _divergence(recorded: Trajectory, env: EpisodeEnv, seen: list[list[Message]]) -> str:
    """Describe the first answer that differs, else a different end; "" if nothing differs."""
    now = env.transcript.answers
    for index, (before, today) in enumerate(zip(recorded.answers, now, strict=False)):
        if before != today:
            what = f"answer to action {index}" if index else "first messages"
            return f"{what}: {_said(seen[index])}{_before(recorded, seen[index])}"
    num_actions, played = len(recorded.actions_json or ()), len(env.transcript.actions)
    if played < num_actions:
        return f"ended after {played} of {num_actions} actions"
    paid, counted = sum(recorded.credit.turn_rewards), not recorded.metrics.get(UNPAID)
    if num_actions and counted and not math.isclose(paid, env.turn_rewards, **_SAME):
        return f"turn rewards of {env.turn_rewards:g}, where {paid:g} were recorded"
    if recorded.outcome is Outcome.COMPLETED and not env.terminated:
        return f"did not end with its {num_actions} actions"
    if recorded.outcome is Outcome.TRUNCATED and env.terminated:
        return "ended, where it had been truncated"
    return ""


def _said(messages: list[Message]) -> str:
    return _short(" | ".join(str(message.get("content")) for message in messages))


def _before(recorded: Trajectory, messages: list[Message]) -> str:
    """Return the recorded answers to the same tool calls, as far as the agent passed them on."""
    ids = {message.get("tool_call_id") for message in messages} - {None}
    then = [m for m in recorded.messages if m.get("tool_call_id") in ids]
    return f" (recorded: {_said(then)})" if then else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


class Report:
    """The sum of all replays; changed rewards and failures are listed one by one."""

    def __init__(self, run: str, env: str) -> None:
        self._run, self._env = run, env
        self._outcomes: dict[str, Counter[str]] = {}
        self._changes: list[Replay] = []
        self._diverged: list[Replay] = []
        self._failures: list[Replay] = []
        self._old = self._new = 0.0

    def add(self, found: Replay) -> None:
        """Add the replay of an episode."""
        if found.reward is None:
            kind = "not_replayed"
            self._failures.append(found)
        else:
            kind = "changed" if found.changed else "unchanged"
            self._old += found.recorded.reward
            self._new += found.reward
        self._outcomes.setdefault(found.recorded.outcome.value, Counter())[kind] += 1
        if found.changed:
            self._changes.append(found)
        if found.divergence:
            self._diverged.append(found)

    def checked(self) -> dict[str, Any]:
        """Return the JSON object of `arl reverify --json`.

        Raises:
            ConfigError: no episode could be played again.
        """
        counts = {kind: self._count(kind) for kind in ("unchanged", "changed", "not_replayed")}
        replayed = counts["unchanged"] + counts["changed"]
        if not replayed:
            why = Counter(found.why for found in self._failures)
            (common, count), *_ = why.most_common(1)
            raise ConfigError(
                f"{self._run}: none of its {counts['not_replayed']} episodes could be verified; "
                f"{count} because: {_in_short(common)}"
            )
        return {
            "run": self._run,
            "env": self._env,
            "episodes": sum(counts.values()),
            **counts,
            "reward": {"old": self._old / replayed, "new": self._new / replayed},
            "outcomes": {name: dict(found) for name, found in sorted(self._outcomes.items())},
            "changes": [_change(found) for found in _ordered(self._changes)],
            "diverged": [
                _who(found) | {"what": found.divergence} for found in _ordered(self._diverged)
            ],
            "failures": [_who(found) | {"why": found.why} for found in _ordered(self._failures)],
        }

    def _count(self, kind: str) -> int:
        return sum(found[kind] for found in self._outcomes.values())


def _in_short(why: str) -> str:
    """Return the reason without its traceback: only the last line, which names the exception."""
    before, traceback, lines = why.partition("Traceback (most recent call last):")
    return before + lines.strip().splitlines()[-1] if traceback else why


def _ordered(found: list[Replay]) -> list[Replay]:
    """Sort replays by episode name: they arrive in the order in which they finished."""
    return sorted(found, key=lambda one: one.recorded.episode_id)


def _who(found: Replay) -> dict[str, Any]:
    recorded = found.recorded
    return {"episode": recorded.episode_id, "task": recorded.task_id, "env": recorded.env_id}


def _change(found: Replay) -> dict[str, Any]:
    return _who(found) | {
        "outcome": found.recorded.outcome.value,
        "old": found.recorded.reward,
        "new": found.reward,
        "verifier": found.verifier,
        "verifier_detail": found.verifier_detail,
    }


OnProgress = Callable[[int], None]
"""A callback that receives the number of episodes played again since its previous call."""


async def reverify(
    run: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    write: Path | None = None,
    on_progress: OnProgress = lambda count: None,
) -> dict[str, Any]:
    """Play every recorded episode of a run again in the environment as it is now.

    The actions are the recorded ones: no model is called. The run is only read; it need not have
    finished. The report is the JSON object of `arl reverify --json`.

    Args:
        overrides: Dotted keys on top of the run's configuration.
        write: A new file for the rewards: one JSON object per episode that could be played. The
            file appears only when it is complete.

    Raises:
        ConfigError: there is no run, its log cannot be read, the environment cannot be made,
            `write` exists, or there is nothing to verify.
        SandboxUnavailable: the environment needs sandboxes, and none are available here.
    """
    config = load_config(config_of(run, f"arl reverify {run}"), overrides)
    spec = env_spec(config.env, config.rollout)
    make_env = spec.maker()
    await specimen(spec)
    report = Report(str(run), config.env.id)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(contextlib.closing(EpisodeReader(run / "episodes.db")))
        ids = reader.episode_ids(untrained=True)
        if not ids:
            raise ConfigError(f"{run} holds no finished episode yet: nothing to verify")
        file = stack.enter_context(new_file(write, argument=f"--write {write}")) if write else None
        async with services(spec, config.sandbox, config.verifier_options) as given:
            replayer = Replayer(
                make_env,
                given,
                timeout_s=config.rollout.patience_s,
                max_retries=config.rollout.max_retries,
            )

            async def worker(remaining: Iterator[str]) -> None:
                for episode_id in remaining:
                    recorded = reader.trajectory(episode_id)
                    found = await replayer.replay(recorded, reader.task(recorded.task_id))
                    report.add(found)
                    if file and found.reward is not None:
                        file.write(json.dumps(_line(found)) + "\n")
                    on_progress(1)

            await _all(worker, ids, at_once=config.eval.max_concurrent)
        return report.checked()


async def _all(worker: Callable[[Iterator[str]], Any], ids: list[str], *, at_once: int) -> None:
    """Distribute `ids` to `at_once` workers."""
    remaining = iter(ids)
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, len(ids))):
            workers.create_task(worker(remaining))


def _line(found: Replay) -> dict[str, Any]:
    recorded = found.recorded
    return {
        "episode": recorded.episode_id,
        "group": recorded.group_id,
        "task": recorded.task_id,
        "env": recorded.env_id,
        "outcome": recorded.outcome.value,
        "old": recorded.reward,
        "new": found.reward,
        "verifier": found.verifier,
    }
