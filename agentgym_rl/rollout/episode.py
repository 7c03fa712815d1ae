"""The play of one episode: a session is opened, the agent runs, and the events become a record.

A failed episode is data: this is the only place where exceptions become outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from agentgym_rl.core import (
    AgentError,
    EnvError,
    ImageError,
    InfraError,
    Message,
    Outcome,
    Task,
    ToolSpec,
    Trajectory,
    added_reward,
    too_slow,
)
from agentgym_rl.core.transcript import Transcript
from agentgym_rl.gateway import AgentClients, Session, SessionRecord, SessionSampling, SessionServer
from agentgym_rl.gym import NO_SERVICES, Agent, Env, Sandbox, Services, Step
from agentgym_rl.gym.wrappers import StepTimeout, within
from agentgym_rl.runtime import ENGINE_CLOCK, Repeated

log = logging.getLogger(__name__)

MAX_VERDICT = 1000
"""The number of characters of a verifier's verdict that are recorded."""
CLOSE_TIMEOUT_S = 5.0
HURRIED_CLOSE_S = 1.0
"""The time limit for an environment to close after its episode was cancelled."""

UNPAID = "unpaid_turn_rewards"
"""The metric of an episode that counts its turn rewards for which there was no turn."""

FOREIGN = (Exception, asyncio.CancelledError, SystemExit)
"""The exceptions that env and agent code may raise without ending the run; the cancellation of
our own task passes."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The time limits, in seconds, of an episode and of a model reply. (Environments from `make`
    limit their steps themselves.)"""

    episode_s: float | None
    """The limit of an episode; None: only `idle_s` limits it."""
    turn_s: float
    """The longest silence of a reply."""
    idle_s: float = 600.0
    """The longest time without a reply or a step in progress."""

    def of_episode(
        self, session: Session, env: EpisodeEnv
    ) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Limit the time of an episode in a context, or else its time without progress."""
        if self.episode_s is not None:
            return ENGINE_CLOCK.timeout(self.episode_s)

        def active_s() -> float:
            at_work = session.in_flight or env.is_stepping  # both have limits of their own
            return ENGINE_CLOCK.time() if at_work else max(session.progress_s, env.progress_s)

        return ENGINE_CLOCK.timeout(self.idle_s, own=active_s)

    def passed(self) -> str:
        """Return the message for an episode that took too long."""
        if self.episode_s is not None:
            return too_slow("the episode", "rollout.episode_timeout_s", self.episode_s)
        what = "the agent, between two requests or steps of an episode,"
        return too_slow(what, "rollout.idle_timeout_s", self.idle_s)


@dataclass(frozen=True, slots=True)
class InputLimit:
    """The longest first prompt, in tokens, from the environment: an agent may add its own text."""

    max_tokens: int
    count: Callable[[Sequence[Message], Sequence[ToolSpec]], int]
    """The count of tokens of messages and tools under the model's chat template."""


class InputTooLong(Exception):
    """The error for a task whose first prompt is too long; the task is not played."""


class EpisodeEnv(Env):
    """The environment that the agent gets: prepared with the task, and scored.

    `reset` returns the first messages once; `step` adds up rewards. Failures of the wrapped
    environment are recorded, because they pass through the agent and are not its fault. Turn
    rewards (`info["turn_reward"]`) go to turns of the `session`, and not into the sum.
    """

    def __init__(
        self,
        env: Env,
        task: Task,
        services: Services = NO_SERVICES,
        warnings: Repeated | None = None,
        session: Session | None = None,
    ) -> None:
        self._env = env
        self._warnings = warnings or Repeated(log)
        self._task = task
        self._services = services
        self._session = session
        self._first: tuple[list[Message], dict[str, Any]] | None = None
        self.reward = 0.0
        self.turn_rewards = 0.0
        """The sum of the turn rewards so far."""
        self.terminated = False
        self.truncated = False
        self.metrics: dict[str, float] = {}
        self.env_id = ""
        """The `info["env_id"]` from `reset`."""
        self.verdict = ""
        """The last verdict of the verifier: `info["verifier"]` and `verifier_detail`."""
        self.reward_parts: dict[str, float] = {}
        """The last number of each part of the reward, from `info["reward_components"]`."""
        self.transcript = Transcript()
        self.failure: EnvError | InfraError | None = None
        self.is_stepping = False
        self.progress_s = -math.inf
        """The time of the end of the last step, on the clock `ENGINE_CLOCK`."""

    async def start(self) -> None:
        """Reset the wrapped environment to the task."""
        options = {"task": self._task, **self._services.options(self._env)}
        try:
            with self._at_work():
                self._first = await self._env.reset(seed=self._task.seed, options=options)
        except FOREIGN as error:
            self._blame("env.reset", error)
            raise
        info = self._first[1]
        self.env_id = str(info.get("env_id", ""))
        if "over" in info:
            self._add(Step([], info["over"], True, False, info))
            self.terminated = True
        self.transcript.answered(self._first[0])
        self.tools = self._env.tools

    def check_input(self, limit: InputLimit) -> None:
        """Check, after `start`, that the first messages are not too long.

        Raises:
            InputTooLong: the messages exceed the limit.
        """
        assert self._first is not None
        messages, _ = self._first
        try:
            found = limit.count(messages, self.tools)
        except ValueError:  # a chat template error: the first request fails with it too
            return
        if found > limit.max_tokens:
            raise InputTooLong(
                f"the first prompt of task {self._task.id} has {found} tokens, more than "
                f"rollout.max_input_tokens {limit.max_tokens}"
            )

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Return the first messages; the task is fixed, so `seed` and `options` are refused."""
        if seed is not None or options:
            raise AgentError("the episode's task is given: call env.reset() without arguments")
        if self._first is None:
            raise AgentError("env.reset() was called twice: an agent plays one episode per run()")
        first, self._first = self._first, None
        return first

    async def step(self, action: Message) -> Step:
        """Forward a step and add its reward.

        Raises:
            AgentError: the episode has ended, or `action` is not a message.
        """
        if self.terminated or self.truncated:
            raise AgentError("env.step() was called after the episode ended")
        self.transcript.act(action)
        try:
            with self._at_work():
                step = await self._env.step(action)
            self._add(step)
            self._pay_turn(step, action)
        except FOREIGN as error:
            self._blame("env.step", error)
            raise
        self.transcript.answered(step.observation)
        self.terminated, self.truncated = step.terminated, step.truncated
        return step

    async def open_sandbox(self) -> Sandbox:
        """Return the wrapped environment's sandbox for agents."""
        try:
            with self._at_work():
                return await self._env.open_sandbox()
        except FOREIGN as error:
            self._blame("env.open_sandbox", error)
            raise

    @contextlib.contextmanager
    def _at_work(self) -> Generator[None]:
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False
            self.progress_s = ENGINE_CLOCK.time()

    async def close(self) -> None:
        """Close the wrapped environment; a failure is logged and does not change the record."""
        try:
            task = asyncio.current_task()
            hurried = task is not None and task.cancelling() > 0  # the run must end in time
            await within(HURRIED_CLOSE_S if hurried else CLOSE_TIMEOUT_S, self._env.close())
        except FOREIGN as error:  # foreign code, after the episode's outcome is known
            if _is_ours(error):
                raise
            self._warnings.warn(
                "env.close of task %s failed: %r", self._task.id, error, why=repr(error)
            )

    def _add(self, step: object) -> None:
        """Add the reward and metrics of `step`. The sum of rewards must be finite too: a run can
        neither record nor learn from a sum that overflows.

        Raises:
            TypeError, ValueError: `step` is not a Step, or has numbers that are not finite.
        """
        if not isinstance(step, Step):
            raise TypeError(f"env.step must return a Step, got {step!r:.200}")
        reward = added_reward(self.reward, step.reward, what="env.step's reward")
        if metrics := step.info.get("metrics"):
            if not all(map(math.isfinite, metrics.values())):
                raise ValueError(f"env.step's metrics must be finite, got {metrics}")
            self.metrics |= {name: float(value) for name, value in metrics.items()}
        if verdict := step.info.get("verifier"):
            detail = step.info.get("verifier_detail")
            self.verdict = (f"{verdict}: {detail}" if detail else str(verdict))[:MAX_VERDICT]
        parts: Mapping[str, Any] = step.info.get("reward_components") or {}
        self.reward_parts |= {str(k): float(v) for k, v in parts.items() if isinstance(v, Real)}
        self.reward = reward

    def _pay_turn(self, step: Step, action: Message) -> None:
        """Add the turn reward of `step`, if any, to the turn that became `action`; raise ValueError
        if it is not finite."""
        value = step.info.get("turn_reward")
        if not value:
            return
        what = "env.step's turn_reward"
        self.turn_rewards = added_reward(self.turn_rewards, value, what=what)
        if self._session is None or self._session.reward_action(float(value), action):
            return
        self.metrics[UNPAID] = self.metrics.get(UNPAID, 0.0) + 1
        if self._session.sampling.train:
            text = "%s of task %s is not paid: the agent has not requested any turn of the model"
            self._warnings.warn(text, what, self._task.id, why=what)

    def _blame(self, what: str, error: BaseException) -> None:
        """Record a failure of the wrapped environment; a cancellation of our own task is not one.

        Raises:
            EnvError: replaces any error except InfraError and StepTimeout.
        """
        if isinstance(error, InfraError | StepTimeout):
            self.failure = error
        elif not _is_ours(error):
            self.failure = EnvError(f"{what}: {_last_lines(error)}")
            raise self.failure from error


async def at_once() -> None:
    """Return immediately."""


@dataclass(frozen=True, slots=True)
class Player:
    """The parts that are the same for all episodes of a run."""

    make_env: Callable[[], Env]
    """A function that makes an environment with the wrappers of `make`: checked, and limited in
    turns and time."""
    make_agent: Callable[[], Agent]
    gateway: SessionServer
    """The gateway, or a relay to an external model."""
    clients: AgentClients
    model_name: str
    deadlines: Deadlines
    services: Services = NO_SERVICES
    """The services that environments need at `reset`."""
    env_id: str = ""
    """The id of the environments of `make_env`, if `reset` does not return one."""
    wait_ready: Callable[[], Awaitable[None]] = at_once
    """A function that waits until an engine serves, called before an episode is played again; it
    may raise InfraError."""

    input_limit: InputLimit | None = None
    """The limit of the first prompt; tasks with a longer one are not played."""
    warnings: Repeated = field(default_factory=lambda: Repeated(log))
    """The warnings of the player's episodes."""

    @property
    def single_agent(self) -> Player:
        """Return the player of the same episodes without other agents."""
        return self

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: SessionSampling
    ) -> Trajectory:
        """Play `task` once. Errors of the episode become its outcome; only cancellation passes."""
        session = self.gateway.open_session(
            sampling=sampling, session_id=episode_id, turn_timeout_s=self.deadlines.turn_s
        )
        env: EpisodeEnv | None = None
        try:
            try:
                env = EpisodeEnv(self.make_env(), task, self.services, self.warnings, session)
            except FOREIGN as error:
                if _is_ours(error):
                    raise
                failed: BaseException | None = EnvError(f"making the env: {_last_lines(error)}")
            else:
                failed = await self._run(env, session, task)
        finally:
            record = self.gateway.close_session(session)
            if env is not None:
                await env.close()
        outcome, error_text = _judge(failed, env, record)
        metrics = _metrics(env, record)
        if outcome is Outcome.AGENT_ERROR and (missed := record.missed_form()):
            outcome, error_text = _ending(env), f"{missed}; {error_text}"
            metrics["forced_missed"] = 1.0
        return Trajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=task.id,
            outcome=outcome,
            reward=(env.reward if env else 0.0) + record.credit.episode_reward,
            rows=record.rows,
            num_turns=record.num_turns,
            metrics=metrics,
            messages=record.messages,
            error=error_text,
            env_id=(env.env_id if env else "") or self.env_id,
            actions_json=env.transcript.actions if env else (),
            answers=env.transcript.answers if env else (),
            tools=record.tools,
            credit=record.credit,
            verdict=env.verdict if env else "",
            reward_parts=env.reward_parts if env else {},
        )

    async def _run(self, env: EpisodeEnv, session: Session, task: Task) -> BaseException | None:
        limit: asyncio.Timeout | None = None
        failed: BaseException | None = None
        try:
            async with self.deadlines.of_episode(session, env) as limit:
                await within(None, self._play(env, session, task))  # agents may swallow it
        except FOREIGN as error:
            if _is_ours(error):
                raise
            failed = error
        if limit and limit.expired():  # also when the agent swallowed the cancellation
            return _Deadline(self.deadlines.passed())
        return failed

    async def _play(self, env: EpisodeEnv, session: Session, task: Task) -> None:
        await env.start()
        if env.terminated:  # there is no turn to take
            return
        if self.input_limit is not None:
            env.check_input(self.input_limit)
        session.main_tools = [str(t.get("function", {}).get("name")) for t in env.tools]
        client = self.clients.for_session(session)
        await self.make_agent().run(env, client, model=self.model_name, task=task)


class _Deadline(Exception):
    """An episode ended by its own deadline, which must not become a reward of 0."""


def _judge(
    failed: BaseException | None, env: EpisodeEnv | None, record: SessionRecord
) -> tuple[Outcome, str]:
    """Return the outcome and the error. Failures of infrastructure come first: they may have caused
    the others."""
    failure = env.failure if env else failed
    if record.infra_error:
        return Outcome.INFRA_ERROR, record.infra_error
    if isinstance(failure, ImageError):
        return Outcome.NO_IMAGE, str(failure)
    if isinstance(failure, InfraError):
        return Outcome.INFRA_ERROR, str(failure)
    if isinstance(failure, EnvError):
        return Outcome.ENV_ERROR, str(failure)
    assert env is not None
    if isinstance(failed, _Deadline):
        return Outcome.ABORTED, str(failed)
    if isinstance(failed, InputTooLong):
        return Outcome.TOO_LONG, str(failed)
    if record.too_long:  # however the agent handled it
        return Outcome.TOO_LONG, record.too_long
    if failed and record.overflow:
        return Outcome.TRUNCATED, "the conversation outgrew the model's context length"
    if failed and record.withheld:
        return Outcome.TRUNCATED, f"a content filter withheld a reply: {record.withheld}"
    if failed is not None:
        return Outcome.AGENT_ERROR, _last_lines(failed)
    return _ending(env), ""


def _ending(env: EpisodeEnv | None) -> Outcome:
    """Return the outcome of an episode that is over and trains."""
    return Outcome.COMPLETED if env and env.terminated else Outcome.TRUNCATED


def _is_ours(error: BaseException) -> bool:
    """Return whether `error` is this task's own cancellation, not a stray one of user code."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


_FOREIGN = ("uncounted_turns", "filtered_turns", "empty_turns", "text_calls")
"""The counters that only models served elsewhere have."""


def _metrics(env: EpisodeEnv | None, record: SessionRecord) -> dict[str, float]:
    """Return the metrics of the environment, overridden by those of the session."""
    counted = {name: float(count) for name, count in record.counters.items()}
    for name in _FOREIGN:
        if not counted.get(name):
            counted.pop(name, None)
    return (env.metrics if env else {}) | counted | dict(record.spent)


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-4)).strip()
