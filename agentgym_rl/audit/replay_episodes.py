"""The replay of one recorded episode."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.chat import Message
from agentgym_rl.core.errors import EpisodeError, InfraError
from agentgym_rl.core.task import Task
from agentgym_rl.core.trajectory import Outcome, Trajectory
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.services import Services
from agentgym_rl.rollout.episode import RETRY_AFTER_S, EpisodeEnv

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
            reward=env.reward + recorded.credit.episode_reward,
            verifier=str(told.get("verifier", "")),
            verifier_detail=str(told.get("verifier_detail", "")),
            divergence=_divergence(recorded, env, seen),
        )


def not_replayable(recorded: Trajectory) -> str | None:
    """Return why an episode cannot be verified; None if it can."""
    if not recorded.outcome.trains:
        return f"it has no reward, being {recorded.outcome.value}"
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
