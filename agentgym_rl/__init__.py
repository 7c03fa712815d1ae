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

from .gymnasium_ids import publish_plugins as _publish_plugins

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .check import check_env as check_env
    from .config import Config as Config
    from .config import load_config as load_config
    from .env import Env as Env
    from .env import Message as Message
    from .env import Step as Step
    from .env import ToolSpec as ToolSpec
    from .registry import make as make
    from .registry import make_agent as make_agent
    from .registry import make_sandbox as make_sandbox
    from .registry import pprint_registry as pprint_registry
    from .registry import register as register
    from .registry import spec as spec
    from .sandbox import Sandbox as Sandbox
    from .specs import EnvSpec as EnvSpec
    from .sync_env import SyncEnv as SyncEnv
    from .task import Task as Task
    from .task import TaskSource as TaskSource
    from .tool_env import ToolEnv as ToolEnv
    from .tool_env import ToolError as ToolError
    from .tool_env import tool as tool
    from .trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "Config": "config",
    "Env": "env",
    "EnvSpec": "specs",
    "Message": "env",
    "Sandbox": "sandbox",
    "Step": "env",
    "SyncEnv": "sync_env",
    "Task": "task",
    "TaskSource": "task",
    "ToolEnv": "tool_env",
    "ToolError": "tool_env",
    "ToolSpec": "env",
    "Trajectory": "trajectory",
    "check_env": "check",
    "load_config": "config",
    "make": "registry",
    "make_agent": "registry",
    "make_sandbox": "registry",
    "pprint_registry": "registry",
    "register": "registry",
    "spec": "registry",
    "tool": "tool_env",
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
