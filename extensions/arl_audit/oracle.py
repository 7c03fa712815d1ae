"""Episodes of an environment's own solutions: the messages of `solve()` take the place of a model's
replies.

The configured agent plays against an endpoint like any other model's. Its messages and tools, and
the results of its calls, are therefore those of a rollout; only the replies are the oracle's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from arl_endpoints.relay import Relay
from arl_endpoints.upstream import Upstream

from agentgym_rl.config import (
    AgentConfig,
    EndpointConfig,
    EnvConfig,
    GatewayConfig,
    RolloutConfig,
    SandboxConfig,
)
from agentgym_rl.core import (
    ConfigError,
    EnvError,
    InfraError,
    Message,
    Outcome,
    Split,
    Task,
    Trajectory,
    length_of,
)
from agentgym_rl.gateway import AgentClients, ApiError, SessionSampling
from agentgym_rl.gateway.messages import call_id
from agentgym_rl.gym import Env, EnvSpec, Services, registry
from agentgym_rl.gym.wrappers import Wrapper
from agentgym_rl.rollout import Player, env_spec, make_player, play_with_retries, specimen
from agentgym_rl.rollout.factory import services
from agentgym_rl.rollout.producer import drawn

_AT_ONCE = 8
"""The episodes played at once: environments with sandboxes or other services wait much."""
_SAMPLING = SessionSampling(max_tokens=1, train=False)
"""The sampling parameters of the sessions, which the oracle does not use."""


async def play_solutions(
    env: EnvConfig,
    agent: AgentConfig,
    rollout: RolloutConfig,
    *,
    sandbox: SandboxConfig,
    verifier: Mapping[str, Any],
    split: Split,
    seed: int,
    num: int,
    slips: float = 0.0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[Trajectory, Task]]:
    """Play the first `num` tasks of `split` with the messages of `solve()`; return the episodes in
    the order of their tasks. An episode without a solution, or not ended by it, has failed. In the
    share `slips` of the episodes, one digit of the solution is a wrong one.

    Raises:
        ConfigError: the environment has no `solve()`, or fewer tasks; or there is no such agent.
        InfraError: a service of the environment failed.
    """
    spec = env_spec(env, rollout)
    registry.make_agent(agent.id, **agent.options)
    tasks = await _tasks(spec, split, seed=seed, num=num, env_id=env.id)
    waiting = iter(enumerate(tasks))
    played: dict[int, tuple[Trajectory, Task]] = {}

    async def worker(given: Services) -> None:
        async with _oracle_player(spec, env.id, agent, rollout, given, slips) as player:
            for index, task in waiting:  # one iterator shared by all workers
                episode = await play_with_retries(
                    player,
                    task,
                    episode_id=f"oracle-{index}",
                    group_id=f"oracle-{index}",
                    sampling=_SAMPLING,
                    max_retries=rollout.max_retries,
                )
                if episode.outcome is Outcome.INFRA_ERROR:
                    raise InfraError(f"task {task.id}: {episode.error}")
                played[index] = episode, task
                on_progress(len(played))

    async with services(spec, sandbox, verifier) as given, asyncio.TaskGroup() as workers:
        for _ in range(min(_AT_ONCE, num)):
            workers.create_task(worker(given))
    return [played[index] for index in range(num)]


async def paid_in_full(env: EnvConfig, rollout: RolloutConfig) -> float:
    """Return the reward of a perfect episode.

    Raises:
        ConfigError: the environment has no `solve()`, or no highest reward.
    """
    example = await specimen(env_spec(env, rollout))
    _check_oracle(example, env.id)
    if example.reward_range is None:
        raise ConfigError(
            f"{env.id} has no highest reward (reward_range is None): name the least reward of a "
            "demonstration with --min-reward"
        )
    return example.reward_range[1]


def _check_oracle(example: Env, env_id: str) -> None:
    if type(example.unwrapped).solve is Env.solve:
        raise ConfigError(
            f"{env_id} has no oracle: its environment has no method solve(), which returns the "
            "assistant messages of a perfect episode (arl docs environments)"
        )


async def _tasks(spec: EnvSpec, split: Split, *, seed: int, num: int, env_id: str) -> list[Task]:
    _check_oracle(await specimen(spec), env_id)
    source = await spec.read_tasks(split, seed=seed)
    length = length_of(source)
    if length is not None and length < num:
        raise ConfigError(
            f"{env_id} has {length:,} {split} tasks, and {num:,} were requested: --num {length} "
            "plays all of them"
        )
    return [await drawn(source, index) for index in range(num)]


@contextlib.asynccontextmanager
async def _oracle_player(
    spec: EnvSpec,
    env_id: str,
    agent: AgentConfig,
    rollout: RolloutConfig,
    given: Services,
    slips: float,
) -> AsyncGenerator[Player]:
    """Open a player of one episode at a time."""
    solution = _Solution(timeout_s=rollout.turn_timeout_s)
    relay = Relay(solution, config=GatewayConfig())
    async with solution, relay.serve() as url, AgentClients(url) as clients:
        player = make_player(
            spec, agent, rollout, relay, clients, solution.model, env_id=env_id, services=given
        )
        make_env = player.make_env
        yield replace(player, make_env=lambda: _Solved(make_env(), solution, slips))


class _Solved(Wrapper):
    """An environment that passes its solution to the endpoint at each reset."""

    def __init__(self, env: Env, solution: _Solution, slips: float) -> None:
        super().__init__(env)
        self._solution = solution
        self._slips = slips

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        first = await self.env.reset(seed=seed, options=options)
        found = self.env.solve()
        if found is None:
            raise EnvError("solve() returned None: no solution of this task is known")
        task = (options or {}).get("task")
        rng = random.Random(f"slip/{task.id if isinstance(task, Task) else seed}")
        self._solution.begin(with_slip(found, rng) if rng.random() < self._slips else found)
        return first


class _Solution(Upstream):
    """A model that replies with the messages of a solution, one for each request."""

    def __init__(self, *, timeout_s: float) -> None:
        config = EndpointConfig(type="openai", base_url="http://oracle", api_key_env="", send=())
        super().__init__(config, model="oracle", api_key="", timeout_s=timeout_s)
        self._replies: Iterator[tuple[int, Message]] = iter(())

    def begin(self, messages: Sequence[Message]) -> None:
        """Begin an episode."""
        self._replies = enumerate(messages)

    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        message, reason = self._next()
        choice = {"index": 0, "message": message, "finish_reason": reason}
        completion = _completion("chat.completion", choice)
        return msgspec.json.encode(completion), completion

    async def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        message, reason = self._next()
        calls: list[Message] = message.get("tool_calls", [])
        calls = [{**call, "index": at} for at, call in enumerate(calls)]
        delta = {**message, "tool_calls": calls} if calls else message
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        yield _completion("chat.completion.chunk", choice)

    def _next(self) -> tuple[dict[str, Any], str]:
        """Return the next message, with the ids that the gateway gives to calls, and its
        finish_reason.

        Raises:
            ApiError: there is none.
        """
        number, said = next(self._replies, (0, None))
        if said is None:
            raise ApiError(
                400, "the solution has no further message: its last one did not end the episode"
            )
        given: Sequence[Message] = said.get("tool_calls") or ()
        calls = [
            {"type": "function", **call, "id": call_id(number, at)} for at, call in enumerate(given)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": None, **said}
        return (message | {"tool_calls": calls}, "tool_calls") if calls else (message, "stop")

    async def _close(self) -> None:
        return None

    def _secrets(self) -> list[str]:
        return []

    def _what_to_check(self) -> str:
        return "check solve() of the environment"


def with_slip(messages: Sequence[Message], rng: random.Random) -> list[dict[str, Any]]:
    """Return a copy of assistant messages in which one digit, of a text or of the arguments of a
    call, is wrong.

    Raises:
        EnvError: there is no digit.
    """
    slipped = msgspec.msgpack.decode(msgspec.msgpack.encode(messages), type=list[dict[str, Any]])
    digits = [
        (holder, key, at)
        for message in slipped
        for holder, key in _texts(message)
        for at, character in enumerate(holder[key])
        if character in _DIGITS
    ]
    if not digits:
        raise EnvError("the solution has no digit that could be wrong: leave --slips out")
    holder, key, at = rng.choice(digits)
    text = holder[key]
    wrong = rng.choice(_DIGITS.replace(text[at], ""))
    holder[key] = text[:at] + wrong + text[at + 1 :]
    return slipped


_DIGITS = "0123456789"


def _texts(message: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the texts that a model writes in a message, as pairs of a dict and its key."""
    if isinstance(message.get("content"), str):
        yield message, "content"
    for call in message.get("tool_calls") or ():
        if isinstance(call["function"].get("arguments"), str):
            yield call["function"], "arguments"


def _completion(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "oracle", "object": kind, "created": 0, "model": "oracle", "choices": [choice]}
