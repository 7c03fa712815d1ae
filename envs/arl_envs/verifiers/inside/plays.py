"""An episode of verifiers whose agents are in the other process; runs in the Python with verifiers.

verifiers' own environment code runs the episode: its `run`, `finalize` and scoring. Each of its
agents is a `Seat`, which requests each reply from the other process instead of a model. Tools run
in this process, without the server that verifiers would start for each rollout.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from verifiers.v1.dialects import parse_message
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
from verifiers.v1.mcp import server as mcp_server
from verifiers.v1.session import RolloutLimits, call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.utils.decorators import discover_decorated, invoke

Event = dict[str, Any]


class UnplayableError(Exception):
    """A request for something that is missing or cannot be played; the user has to change it."""


class Play:
    """An episode in progress: it runs until it needs a reply, and continues with the reply.

    An environment may wait for several agents at once; their replies are taken one after the other.
    """

    def __init__(self, env: Any, task: Any, shared: Shared) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._env, self._task = copy.copy(env), task
        self._seats = {
            name: Seat(name, self._events, getattr(env.config, name), type(task), shared)
            for name in env._agent_specs
        }
        self._env._episode_agents = self._agents
        self._next_seat = ""
        """The seat whose reply is next."""
        self._running: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        self._running = group.create_task(self._run())

    async def event(self, reply: Event | None = None) -> Event:
        """Return the next event, after `reply`: a seat that has to reply, or the outcome; and the
        messages that each seat has not received yet.

        Raises:
            UnplayableError: the environment does something that cannot be played.
            Exception: its own code raised.
        """
        try:
            if reply is not None:
                self._seats[self._next_seat].replies.put_nowait(reply)
            found = await self._events.get()
            if (error := found.get("error")) is not None:
                raise error
            self._next_seat = found["seat"]
            return found | {"messages": {name: seat.unsent() for name, seat in self._seats.items()}}
        except BaseException:  # a timeout, too: nobody would receive a later event
            self.leave()
            raise

    def leave(self) -> None:
        """End the episode at any point, without a score."""
        if self._running is not None:
            self._running.cancel()

    def _agents(self, _: Any, completed: list[Any], *__: Any) -> Any:
        for seat in self._seats.values():
            seat.completed = completed
        return SimpleNamespace(**self._seats)

    async def _run(self) -> None:
        try:
            episode = await self._env.run_episode(self._task, None)
            self._events.put_nowait(self._outcome(episode))
        except Exception as error:
            self._events.put_nowait({"error": error})

    def _outcome(self, episode: Any) -> Event:
        for seat in self._seats.values():
            if seat.failure is not None:
                raise seat.failure
        if episode.errors:
            last = episode.errors[-1]
            raise RuntimeError(f"{last.type}: {last.message}")
        if all(seat.trace is None for seat in self._seats.values()):
            raise RuntimeError("no agent was asked")
        return {"seat": None, "results": {name: it.result() for name, it in self._seats.items()}}


class Seat:
    """A stand-in for an agent in an environment of verifiers, as its `run` uses it."""

    def __init__(
        self, name: str, events: asyncio.Queue[Event], config: Any, own: type, shared: Shared
    ) -> None:
        self.config, self.trainable = config, True
        self.completed: list[Any] = []
        self.replies: asyncio.Queue[Event] = asyncio.Queue()
        self.trace: Any = None
        self.failure: Exception | None = None
        self._name, self._events, self._own, self._shared = name, events, own, shared
        self._num_sent = 0

    async def run(self, task: Any, **options: Any) -> Any:
        """Solve the task in one turn, from its prompt to the first reply without a call."""
        async with self.interaction(task, **options) as exchange:
            await exchange.turn()
            self.trace.stop("agent_completed")
        return self.trace

    @contextlib.asynccontextmanager
    async def interaction(
        self, task: Any, *, runtime: Any = None, tools: Any = None, on_trace: Any = None, **_: Any
    ) -> AsyncIterator[Exchange]:
        """Open an exchange in which the environment is the user; score it at the end."""
        try:
            if self.trace is not None:
                raise UnplayableError(
                    f"the environment has its {self._name} begin twice in one episode"
                )
            if runtime is not None or tools:
                raise UnplayableError("the environment lends its agent a runtime or tool servers")
            check(task)
            self.trace = trace = _trace(task, self.config, name=self._name)
            trace.agent.trainable = self.trainable
            if on_trace is not None:
                on_trace(trace)
            if type(task).setup is not vf.Task.setup:
                await invoke(task.setup, {"trace": trace})
            async with contextlib.AsyncExitStack() as stack:
                served = await self._tools(task, trace, stack)
                yield Exchange(self, task, served)
            trace.stop("user_closed")
            if type(task).finalize is not vf.Task.finalize:
                await invoke(task.finalize, {"trace": trace})
            await task.score(trace)
            trace.ok = True
        except Exception as error:
            self.failure = self.failure or error
            raise
        self.completed.append(self.trace)

    async def reply(self, tools: list[Any]) -> Event:
        """Return the reply to the messages since the last one."""
        self._events.put_nowait({"seat": self._name, "tools": [_function(tool) for tool in tools]})
        return await self.replies.get()

    def result(self) -> Event:
        """Return the reward, metrics and end of the seat; no reward if it never had a turn."""
        trace = self.trace
        if trace is None:
            return {"reward": 0.0, "rewards": {}, "metrics": {}, "stop": None, "truncated": False}
        return {
            "reward": trace.reward,
            "rewards": {name: each and each.value for name, each in trace.rewards.items()},
            "metrics": {name: each for name, each in trace.metrics.items() if each is not None},
            "stop": trace.stop_condition,
            "truncated": trace.is_truncated,
        }

    def unsent(self) -> list[Event]:
        """Return the messages since the last reply, which the agent has not received yet."""
        nodes = [] if self.trace is None else self.trace.nodes[self._num_sent :]
        self._num_sent += len(nodes)
        return [as_json(node.message) for node in nodes if not node.sampled]

    async def _tools(self, task: Any, trace: Any, stack: contextlib.AsyncExitStack) -> Tools:
        servers = list(self._shared.servers) if isinstance(task, self._own) else []
        for toolset in task.toolsets(task.config):
            await stack.enter_async_context(toolset._exit_stack)
            _join_state(toolset, trace)
            await toolset.setup()
            await toolset.setup_task(task.data)
            servers.append(toolset)
        return await Tools.of(servers)


class Exchange:
    """A conversation in which the environment is the user, as `Interaction` is in verifiers."""

    def __init__(self, seat: Seat, task: Any, tools: Tools) -> None:
        self.trace = seat.trace
        self._seat, self._task, self._tools = seat, task, tools
        self._limits = RolloutLimits(max_turns=seat.config.max_turns)
        self._stops = [(hook_boundary(fn, allow_trace=True), fn) for fn in task.hooks("stop")]
        self._begun = self._over = False
        self.trace.tools = list(tools.forms)
        for message in opening(task.data):
            _add(self.trace, parse_message(message))

    async def turn(self, message: Any = None) -> Any:
        """Send `message` and return the agent's answer, with its tool calls and their results."""
        if self._over:
            raise RuntimeError("the exchange is over: a segment said `terminated`")
        prompt_is_first = not self._begun and self._task.data.prompt is not None
        if (message is None) != prompt_is_first:
            expected = "a bare turn(): the prompt opens it" if prompt_is_first else "a message"
            raise ValueError(f"turn({message!r:.40}): expected {expected}")
        self._begun = True
        new = [vf.UserMessage(content=message)] if isinstance(message, str) else message or []
        for each in new:
            _add(self.trace, parse_message(each) if isinstance(each, dict) else each)
        before = len(self.trace.nodes)
        while not await self._stopped(vf.Request, self._request()):
            reply = await self._seat.reply(self._tools.forms)
            calls = [vf.ToolCall(**call) for call in reply["calls"]] if self._tools.forms else []
            answer = vf.AssistantMessage(content=reply["content"], tool_calls=calls or None)
            _add(self.trace, answer, sampled=True)
            if await self._stopped(vf.Response, _response(answer)) or not calls:
                break
            for call in calls:
                content = await self._tools.call(call)
                result = vf.ToolMessage(tool_call_id=call.id, name=call.name, content=content)
                _add(self.trace, result)
        segment = [node.message for node in self.trace.nodes[before:]]
        self._over = not segment
        return vf.Segment(messages=segment, terminated=self._over)

    async def send(self, *_: Any, **__: Any) -> None:
        raise UnplayableError(
            "the environment speaks in the middle of its agent's turn (send or steer)"
        )

    steer = send

    def _request(self) -> Any:
        messages = [node.message for node in self.trace.nodes]
        return vf.Request(messages=messages, tools=self._tools.forms or None)

    async def _stopped(self, kind: Any, crossing: Any) -> bool:
        """Check the limits, and the task's stops for this boundary; record the reason of a stop."""
        condition = self.trace.stop_condition
        if kind is vf.Request and condition is None:
            condition = self._limits.reached(self.trace)
        boundaries = (vf.Request, vf.Trace) if kind is vf.Request else (vf.Response,)
        for boundary, stop in self._stops:
            if condition is None and boundary in boundaries:
                given = {boundary: crossing, vf.Trace: self.trace}
                condition = stop.__name__ if await call_hook(stop, given) else None
        if condition is not None:
            self.trace.stop(condition)
        return condition is not None


class Tools:
    """The tools of some toolsets, called in this process."""

    def __init__(self) -> None:
        self.forms: list[Any] = []
        self._of: dict[str, tuple[Any, str]] = {}

    @classmethod
    async def of(cls, toolsets: list[Any]) -> Tools:
        found = cls()
        for toolset in toolsets:
            served = MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(served)
            for tool in await served.list_tools():
                name = "_".join(part for part in (toolset.server_name, tool.name) if part)
                if name in found._of:
                    raise UnplayableError(f"two tools are called {name}")
                found._of[name] = (served, tool.name)
                about = {"description": tool.description or "", "parameters": tool.input_schema}
                found.forms.append(vf.Tool(name=name, **about))
        return found

    async def call(self, call: Any) -> Any:
        """Return the tool's result, or a message about an error in the agent's call."""
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f"error: the arguments are no JSON ({error})"
        if not isinstance(arguments, dict):
            return f"error: the arguments are no JSON object but {type(arguments).__name__}"
        if call.name not in self._of:
            return f"error: unknown tool {call.name!r}; there are {', '.join(sorted(self._of))}"
        served, name = self._of[call.name]
        try:
            found = await served.call_tool(name, arguments)
        except ToolError as error:
            return str(error)
        return mcp_content_to_chat_content(found.content)


class Shared:
    """The toolsets that all episodes of a taskset share, set up once."""

    def __init__(self, taskset: Any) -> None:
        self.servers = _local(taskset.toolsets(taskset.config))
        self._turn = asyncio.Lock()
        self._is_ready = False

    async def ready(self) -> None:
        async with self._turn:
            if self._is_ready:
                return
            for toolset in self.servers:
                await toolset._exit_stack.__aenter__()
                await toolset.setup()
            self._is_ready = True


# ---------------------------------------------------------------------- what can be played
def seats_of(env: Any) -> list[str]:
    """Return the names of the environment's agents.

    Raises:
        UnplayableError: it names the player of an agent, or limits an agent by tokens, which are
            not counted here.
    """
    limits = ("max_input_tokens", "max_output_tokens", "max_total_tokens")
    hints = dict.fromkeys(limits, "set rollout.max_tokens instead")
    hints |= {key: "rollout.seats names the player of each seat" for key in ("model", "client")}
    hints["sampling"] = "set rollout.temperature and rollout.max_tokens instead"
    for seat, spec in env._agent_specs.items():
        if found := [key for key in hints if getattr(spec, key) is not None]:
            raise UnplayableError(f"{seat}.{found[0]}: {hints[found[0]]}")
    return list(env._agent_specs)


def check(task: Any) -> None:
    """Refuse a task that needs more than an agent that talks and calls tools."""
    kind, name = type(task), type(task).__name__
    _local(kind.toolsets(task.config))
    if kind.NEEDS_CONTAINER or task.data.image:
        raise UnplayableError(f"{name} needs a container, which is not started here")
    if discover_decorated(task, "intercept"):
        raise UnplayableError(f"{name} rewrites what the model says (@intercept)")
    own = [kind.setup] * (kind.setup is not vf.Task.setup)
    own += [kind.finalize] * (kind.finalize is not vf.Task.finalize)
    for hook in [*own, *paying(task), *task.hooks("metric")]:
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise UnplayableError(
                f"{name}.{hook.__name__} needs a runtime, which is not started here"
            )


def paying(task: Any) -> list[Any]:
    """Return the functions whose results are added to a task's reward."""
    return [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]


def _local(toolsets: list[Any]) -> list[Any]:
    for toolset in toolsets:
        if getattr(toolset.config, "url", None):
            raise UnplayableError(
                f"the tools of {toolset.server_name} are an MCP server elsewhere; attach it to the "
                "environment with the wrapper arl_envs.mcp:McpTools"
            )
        runtime = getattr(toolset.config, "runtime", None)
        if runtime is not None and runtime.type != "subprocess":
            raise UnplayableError(
                f"the tools of {toolset.server_name} need a {runtime.type} runtime"
            )
    return toolsets


# ---------------------------------------------------------------------- messages
def opening(data: Any) -> list[dict[str, str]]:
    """Return the opening messages of a task; none if a user opens the episode."""
    found = [] if data.system_prompt is None else [("system", data.system_prompt)]
    if isinstance(data.prompt, str):
        found.append(("user", data.prompt))
    else:
        found += [(message.role, _text(message)) for message in data.prompt or []]
    return [{"role": role, "content": text} for role, text in found]


def as_json(message: Any) -> Event:
    """Return a message in the form of a chat API."""
    found = {"role": message.role, "content": _text(message)}
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
    return found


def _text(message: Any) -> str:
    parts = [message.content] if isinstance(message.content, str) else message.content or []
    texts = [part if isinstance(part, str) else getattr(part, "text", None) for part in parts]
    if getattr(message, "tool_calls", None) or None in texts:
        raise UnplayableError(
            "the environment shows images, or calls that it makes up: text is played"
        )
    return "\n".join(map(str, texts))


def _function(tool: Any) -> Event:
    about = {key: getattr(tool, key) for key in ("name", "description", "parameters")}
    return {"type": "function", "function": about}


def _add(trace: Any, message: Any, *, sampled: bool = False) -> None:
    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled))


def _response(message: Any) -> Any:
    reason = "tool_calls" if message.tool_calls else "stop"
    return vf.Response(id="", created=0, model="", message=message, finish_reason=reason)


def _trace(task: Any, config: Any, *, name: str) -> Any:
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=config, name=name)
    return vf.Trace(task=about, agent=agent, state=state_cls(type(task))())


def _join_state(toolset: Any, trace: Any) -> None:
    """Connect the tools to the state of the episode, with a copy for each call."""

    async def pull() -> Any:
        return toolset._state_adapter.validate_json(trace.state.model_dump_json())

    async def push(before: bytes) -> None:
        after = toolset._state_adapter.dump_json(mcp_server._call_state.get())
        if after != before:
            trace.state = type(trace.state).model_validate_json(after)

    toolset._pull_state, toolset._push_state = pull, push
