"""agentgym-rl: a gym of agentic environments with an asynchronous RL trainer attached.

    task ─► env.reset ─► agent ─► gateway ─► engine            (rollout side: asyncio, no torch)
                          ▲          │ tokens, behavior logprobs, policy versions
            env.step ◄────┘          ▼
                        reward ─► trajectory ─► buffer ─► batch ─► trainer ─► weights ─► engine
                                   (durable)   (staleness-bounded)  (torch, FSDP2)

Each word is a file or folder of this package; docs/map.md walks through them. The names below
are the public ones; they load on first use, so `import agentgym_rl` stays fast and torch-free.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentgym_rl.gym.gymnasium.ids import publish_plugins as _publish_plugins

if TYPE_CHECKING:
    from agentgym_rl.config import Config as Config
    from agentgym_rl.config import load_config as load_config
    from agentgym_rl.core.chat import Message as Message
    from agentgym_rl.core.chat import ToolSpec as ToolSpec
    from agentgym_rl.core.task import Task as Task
    from agentgym_rl.core.task import TaskSource as TaskSource
    from agentgym_rl.core.trajectory import Trajectory as Trajectory
    from agentgym_rl.gym.agent import Agent as Agent
    from agentgym_rl.gym.check import check_env as check_env
    from agentgym_rl.gym.env import Env as Env
    from agentgym_rl.gym.env import Step as Step
    from agentgym_rl.gym.registry import make as make
    from agentgym_rl.gym.registry import make_agent as make_agent
    from agentgym_rl.gym.registry import make_sandbox as make_sandbox
    from agentgym_rl.gym.registry import pprint_registry as pprint_registry
    from agentgym_rl.gym.registry import register as register
    from agentgym_rl.gym.registry import spec as spec
    from agentgym_rl.gym.sandbox import Sandbox as Sandbox
    from agentgym_rl.gym.specs import EnvSpec as EnvSpec
    from agentgym_rl.gym.sync_env import SyncEnv as SyncEnv
    from agentgym_rl.gym.tool_env import ToolEnv as ToolEnv
    from agentgym_rl.gym.tool_env import ToolError as ToolError
    from agentgym_rl.gym.tool_env import tool as tool

__version__ = "0.1.0"

_HOMES = {
    "Agent": "gym.agent",
    "Config": "config",
    "Env": "gym.env",
    "EnvSpec": "gym.specs",
    "Message": "gym.env",
    "Sandbox": "gym.sandbox",
    "Step": "gym.env",
    "SyncEnv": "gym.sync_env",
    "Task": "core.task",
    "TaskSource": "core.task",
    "ToolEnv": "gym.tool_env",
    "ToolError": "gym.tool_env",
    "ToolSpec": "gym.env",
    "Trajectory": "core.trajectory",
    "check_env": "gym.check",
    "load_config": "config",
    "make": "gym.registry",
    "make_agent": "gym.registry",
    "make_sandbox": "gym.registry",
    "pprint_registry": "gym.registry",
    "register": "gym.registry",
    "spec": "gym.registry",
    "tool": "gym.tool_env",
}

__all__ = [
    "Agent",
    "Config",
    "Env",
    "EnvSpec",
    "Message",
    "Sandbox",
    "Step",
    "SyncEnv",
    "Task",
    "TaskSource",
    "ToolEnv",
    "ToolError",
    "ToolSpec",
    "Trajectory",
    "__version__",
    "check_env",
    "load_config",
    "make",
    "make_agent",
    "make_sandbox",
    "pprint_registry",
    "register",
    "spec",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__


_publish_plugins()
