"""The trial: before engines start, the agent plays one episode of the environment against scripted
replies, so that a mistake in their code takes seconds, and leaves no run behind.

Only code of a user is tried, not our own environments and agents. Sandboxes, judges and games of
several seats are not started for a trial. Its episode is recorded nowhere, and the states of the
global random generators are put back, so that a run plays the same tasks with and without it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import re
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from agentgym_rl.config import AgentConfig, Config, EnvConfig, RolloutConfig
from agentgym_rl.core import (
    ArlError,
    ConfigError,
    EnvError,
    EpisodeError,
    Message,
    Outcome,
    Split,
    Task,
    Trajectory,
    definition_of,
    explain,
    is_function_path,
    is_list,
    is_mapping,
    is_tuple,
    listed,
    raise_cause,
)
from agentgym_rl.gym import Env, EnvSpec, Step, registry
from agentgym_rl.gym.data import TaskLoader
from agentgym_rl.gym.wrappers import Held, Wrapper, within
from agentgym_rl.rollout import (
    GroupRewarder,
    accept_filter,
    env_spec,
    player_kind,
    specimen,
)
from agentgym_rl.runtime import OURS, hidden_modules

from .blocking import BlockWatch
from .keys import TrialKeys
from .pays import never_pays

if TYPE_CHECKING:
    from agentgym_rl.rollout import Player

    from .scripted import Script

log = logging.getLogger(__name__)

MODEL, TEXT = "trial", "4"
_LONGER = 6
"""The multiple of its time limit that is advised to a trial that was left."""
_EXACT_S = 0.01
_WITHOUT = "\n--rollout.trial_s=0 starts without this trial"


@asynccontextmanager
async def watched(config: Config, split: Split | None) -> AsyncGenerator[None]:
    """Try the environment and the agent of a run, unless `split` is None, and watch them while it
    lasts.

    Raises:
        ConfigError: their code failed; the message has the place and what to do.
    """
    with BlockWatch() as watch:
        if split is not None:
            await _tried(config, split, watch)
        yield


async def _tried(config: Config, split: Split, watch: BlockWatch) -> None:
    limit_s = config.of(TrialKeys).trial_s
    spec = env_spec(config.env, config.rollout)
    if not limit_s or not await is_tried(spec, config.env, config.agent, config.rollout):
        return
    try:
        async with limited(limit_s, watch.ran_s):
            with _same_random_numbers():
                problem = await _try(spec, config, split, watch)
        if problem:
            raise ConfigError(problem + _WITHOUT)
    except TimeoutError:
        if watch.interrupted:
            raise ConfigError(watch.interrupted + _WITHOUT) from None
        log.warning(
            "the trial of %s with %s was left undone after %g s: mistakes in their code may show "
            "only in the run. --rollout.trial_s=%g gives it longer, 0 starts without it",
            *(config.env.id, config.agent.id, limit_s, _LONGER * limit_s),
        )
    except ArlError:
        raise
    except Exception as error:  # the trial's own fault must not stop a run
        if hint := hidden_modules(error):
            raise ConfigError(hint) from error
        log.warning("the trial of %s failed by itself", config.env.id, exc_info=True)


@asynccontextmanager
async def limited(limit_s: float, ran_s: Callable[[], float]) -> AsyncGenerator[None]:
    """Raise TimeoutError in the context after `limit_s` of the clock `ran_s`, which never runs
    faster than the loop's."""
    loop, end_s = asyncio.get_running_loop(), ran_s() + limit_s

    def look() -> None:
        nonlocal timer
        if (left_s := end_s - ran_s()) > _EXACT_S:
            timer = loop.call_later(left_s, look)
        else:
            limit.reschedule(loop.time())

    timer = loop.call_later(limit_s, look)
    try:
        async with asyncio.timeout(None) as limit:
            yield
    finally:
        timer.cancel()


async def is_tried(
    spec: EnvSpec, env: EnvConfig, agent: AgentConfig, rollout: RolloutConfig
) -> bool:
    """Return whether a run has code of a user that can be tried without further services."""
    agent_spec = registry.spec(agent.id, kind="agent")
    foreign = (
        _is_foreign(spec.entry_point)
        or _is_foreign(agent_spec.entry_point)
        or any(_is_foreign(it.entry_point) for it in spec.wrappers)
        or _names_code([spec.kwargs, rollout.should_accept, rollout.group_reward])
    )
    if not foreign or spec.kwargs.get("judge") or spec.kwargs.get("reward_model"):
        return False
    if not player_kind(rollout, spec).single_agent:
        return False
    made = await specimen(spec)
    # our own reward environment starts a verifier of its own, if it has to
    checked = made.uses_verifier and _is_foreign(spec.entry_point)
    return not made.needs_sandboxes and not checked


def _is_foreign(path: str) -> bool:
    """Return whether the module of `module:attr` is not one of this package."""
    return path.partition(":")[0].partition(".")[0] not in OURS


def _names_code(value: Any) -> bool:
    """Return whether some option is a `module:attr` of other code."""
    if isinstance(value, str):
        return is_function_path(value) and _is_foreign(value)
    if is_mapping(value):
        return any(map(_names_code, value.values()))
    return (is_list(value) or is_tuple(value)) and any(map(_names_code, value))


@contextmanager
def _same_random_numbers() -> Generator[None]:
    """Put the states of the global random generators back at the end of the context."""
    numpy = sys.modules.get("numpy")
    before, theirs = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(before)
        if numpy is not None and theirs is not None:
            numpy.random.set_state(theirs)


async def _try(spec: EnvSpec, config: Config, split: Split, watch: BlockWatch) -> str:
    """Play an episode, and after a failure one of another task: the first row may be odd. Return
    what is wrong with the code of the environment or the agent."""
    seed = config.seed if split == "train" else config.eval.seed
    tasks = await spec.read_tasks(split, seed=seed)
    agent, problem = config.agent.id, ""
    async with _playing(spec, config, watch) as (player, script):
        for task in islice(TaskLoader(tasks), 2):
            script.begin()
            try:
                played = await _played(player, script, task)
            except Held as held:
                return f"agent {agent}: {held}"
            asked = script.num_requests > 0 or split == "eval"  # a baseline may do without a model
            problem = problem_of(played, asked=asked, agent=agent) if played else ""
            if played and not problem and split == "train":
                problem = await group_problem(config.rollout, task, played)
            if not played or not problem or watch.interrupted:
                break
    if played and not problem:
        for idle in (_without_reward(spec, config), without_steps(played, script, agent)):
            if idle:
                log.warning("%s", idle)
    if problem and depends_on_reply(problem, task.data) and script.num_requests:
        log.warning("a reply of %r, in a trial, is an error. %s", TEXT, problem)
        return ""
    if problem:
        run = registry.spec(agent, kind="agent").load().run
        if not inspect.iscoroutinefunction(run) and f"agent {agent}" in problem:
            place = definition_of(run)
            return f"agent {agent}: `run` is `def`: write `async def run` ({place})"
    is_env = played is not None and played.outcome is Outcome.ENV_ERROR
    if problem and is_env and _is_foreign(spec.entry_point):
        return f"{problem}\n`arl check {config.env.id}` tries the environment by itself"
    return problem


def _without_reward(spec: EnvSpec, config: Config) -> str:
    """Return why no episode of a run can have a reward; "" if one may."""
    if spec.wrappers or config.rollout.group_reward or not (problem := never_pays(spec.load())):
        return ""
    return (
        f"{problem}. Write `def finish(self, text)`, which returns the reward of an answer, as in "
        "`return float(text == self.answer)`"
    )


def without_steps(played: Trajectory, script: Script, agent: str) -> str:
    """Return what an agent lacks that asks the model, and never the environment."""
    if played.actions_json or played.reward or not script.num_requests:
        return ""
    place = definition_of(registry.spec(agent, kind="agent").load().run)
    return (
        f"agent {agent}{f' ({place})' if place else ''} asked the model, but never called env.step "
        f"(the reply was {TEXT!r}): the environment sees no reply, so that every reward is 0 and "
        "nothing can be learned. Give it each reply: "
        "`await env.step(reply.choices[0].message.model_dump(exclude_none=True))`"
    )


async def group_problem(rollout: RolloutConfig, task: Task, played: Trajectory) -> str:
    """Return what is wrong with the functions that reward and accept groups, called with a group of
    the trial's episode."""
    accepts, members = rollout.should_accept, [played] * rollout.group_size
    try:
        rewarded = await GroupRewarder(rollout).rewarded(task, members)
        if is_function_path(accepts):
            accept_filter(accepts)(rewarded)
    except EpisodeError:  # such as a judge's
        return ""
    except ConfigError as error:
        return str(error)
    except Exception as error:  # the user's code
        return f"rollout.should_accept={accepts!r} raised {explain(error)}"
    return ""


_BY_REPLY = re.compile(
    r"\b(ValueError|\w*DecodeError|IndexError|KeyError|AssertionError|ZeroDivisionError)\b"
    r"|'NoneType' object|'(int|float)' object is not"
)
"""The errors that a reply of the wrong form causes: a better model may never do so."""


def depends_on_reply(problem: str, data: Mapping[str, Any]) -> bool:
    """Return whether the problem may be one of the scripted reply, and not of the code: a column
    that the task's `data`, or the row in it, lacks is not."""
    first = problem.partition("\n")[0]
    tables = (data, *filter(is_mapping, data.values()))
    of_task = any(f" has {listed(it)}" in first for it in tables)
    return bool(_BY_REPLY.search(first)) and not of_task and "env.reset" not in first


@asynccontextmanager
async def _playing(
    spec: EnvSpec, config: Config, watch: BlockWatch
) -> AsyncGenerator[tuple[Player, Script]]:
    """Serve the script, and yield a player of the configured agent and environment."""
    from arl_endpoints.relay import Relay

    from agentgym_rl.config import GatewayConfig
    from agentgym_rl.gateway import AgentClients
    from agentgym_rl.gym import NO_SERVICES
    from agentgym_rl.rollout import make_player

    from .scripted import Script

    made: list[Env] = []
    script = Script(MODEL, text=TEXT, solution=lambda: made[-1].solve() if made else None)
    relay = Relay(script, config=GatewayConfig())
    async with script, relay.serve() as base_url, AgentClients(base_url) as clients:
        env = config.env.id
        parts = (spec, config.agent, config.rollout, relay, clients, MODEL)
        player = make_player(*parts, env_id=env, services=NO_SERVICES)

        def make_env() -> Env:
            made.append(player.make_env())
            return _Sendable(made[-1])

        with watch.trying(base_url.removesuffix("/v1"), config.of(TrialKeys).trial_s):
            yield replace(player, make_env=make_env), script


async def _played(player: Player, script: Script, task: Task) -> Trajectory | None:
    """Return the episode of a task; None if it is longer than the script."""
    from agentgym_rl.gateway import SessionSampling

    async def play() -> Trajectory | None:
        sampling = SessionSampling(max_tokens=64)
        return await player.play(task, episode_id="trial", group_id="trial", sampling=sampling)

    try:
        async with asyncio.TaskGroup() as tasks:
            # `within` leaves an episode that swallows its cancellation
            playing = tasks.create_task(within(None, play()), name="trial")
            ended = tasks.create_task(script.ended.wait(), name="end of the script")
            await asyncio.wait([playing, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            playing.cancel()  # no effect if it has ended
    except BaseExceptionGroup as group:
        raise_cause(group)
    return None if playing.cancelled() else playing.result()


class _Sendable(Wrapper):
    """A check of the messages of an environment: they are sent to a model as JSON."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        messages, info = await self.env.reset(seed=seed, options=options)
        if not messages and "over" not in info:
            raise self._refused("reset", "got no message: a model needs at least one")
        self._check("reset", messages)
        return messages, info

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self._check("step", step.observation)
        return step

    def _check(self, method: str, messages: Sequence[Message]) -> None:
        from agentgym_rl.gateway import ApiError, checked_messages

        try:
            json.dumps(list(messages))
            if messages:
                checked_messages(list(messages))
        except (TypeError, ValueError) as error:
            awaits = "; `await` is missing before a call" if "coroutine" in str(error) else ""
            problem = f"a message cannot be sent to a model: {error}{awaits}"
        except ApiError as error:
            problem = f"got what is no chat message: {str(error).removesuffix('.')}"
        else:
            return
        raise self._refused(method, problem)

    def _refused(self, method: str, problem: str) -> EnvError:
        """Return the error of messages that a model cannot read, with the user's method."""
        made = self.env.unwrapped
        cls = type(getattr(made, "env", made))  # of a SyncEnv, the class of the user
        hooks = ("begin", "reset") if method == "reset" else ("step", "finish")
        places = {name: definition_of(getattr(cls, name)) for name in hooks if hasattr(cls, name)}
        name = next((name for name, place in places.items() if place), method)
        place = places.get(name) or definition_of(cls)
        example = '{"role": "user", "content": "..."}'
        return EnvError(
            f"env.{method}: {problem}; `{name}` returns messages such as {example} ({place})"
        )


def problem_of(played: Trajectory, *, asked: bool, agent: str) -> str:
    """Return what is wrong with the code that has played the trial; "" if nothing is known to be.
    `asked`: the agent has made a request, or need not make one."""
    if played.outcome is Outcome.ENV_ERROR:
        return played.error
    if played.outcome is Outcome.AGENT_ERROR:
        elsewhere = not asked and _CONNECTION.search(played.error)
        return f"agent {agent}: {played.error}{_ELSEWHERE if elsewhere else ''}"
    over = played.outcome is Outcome.COMPLETED and not played.actions_json
    if not asked and not over and played.outcome.trains:
        return f"agent {agent}: it made no request of the model{_ELSEWHERE}"
    return ""


_CONNECTION = re.compile(r"Connect|Authentication|NotFound|PermissionDenied|api_key")
"""The errors of clients that ask another server."""
_ELSEWHERE = (
    "\nUse the `client` that run() gets, as in client.chat.completions.create(model=model, ...); "
    "other SDKs take its base_url and api_key, and the `model` of run()"
)
