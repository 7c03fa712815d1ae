"""agentgym-rl: a gym of agentic environments with an asynchronous RL trainer attached.

    task ─► env.reset ─► agent ─► gateway ─► engine            (rollout side: asyncio, no torch)
                          ▲          │ tokens, behavior logprobs, policy versions
            env.step ◄────┘          ▼
                        reward ─► trajectory ─► buffer ─► batch ─► trainer ─► weights ─► engine
                                   (durable)   (staleness-bounded)  (torch, FSDP2)

Each word is a file or folder of this package (docs/map.md has all of them). The names below
are the public ones; they load on first use, so `import agentgym_rl` stays fast and torch-free.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from agentgym_rl.config import Config as Config
    from agentgym_rl.config import load_config as load_config
    from agentgym_rl.controller import Buffer as Buffer
    from agentgym_rl.core import AgentError as AgentError
    from agentgym_rl.core import ArlError as ArlError
    from agentgym_rl.core import ConfigError as ConfigError
    from agentgym_rl.core import Engine as Engine
    from agentgym_rl.core import EnvError as EnvError
    from agentgym_rl.core import InfraError as InfraError
    from agentgym_rl.core import Message as Message
    from agentgym_rl.core import SandboxError as SandboxError
    from agentgym_rl.core import SandboxLost as SandboxLost
    from agentgym_rl.core import SandboxUnavailable as SandboxUnavailable
    from agentgym_rl.core import Task as Task
    from agentgym_rl.core import TaskSource as TaskSource
    from agentgym_rl.core import ToolSpec as ToolSpec
    from agentgym_rl.core import Trajectory as Trajectory
    from agentgym_rl.evaluate.command import evaluate as evaluate
    from agentgym_rl.fleet import Fleet as Fleet
    from agentgym_rl.gym import Agent as Agent
    from agentgym_rl.gym import Env as Env
    from agentgym_rl.gym import EnvSpec as EnvSpec
    from agentgym_rl.gym import Sandbox as Sandbox
    from agentgym_rl.gym import Step as Step
    from agentgym_rl.gym import SyncEnv as SyncEnv
    from agentgym_rl.gym import ToolEnv as ToolEnv
    from agentgym_rl.gym import ToolError as ToolError
    from agentgym_rl.gym import Verifier as Verifier
    from agentgym_rl.gym import data as data
    from agentgym_rl.gym import make as make
    from agentgym_rl.gym import make_agent as make_agent
    from agentgym_rl.gym import make_sandbox as make_sandbox
    from agentgym_rl.gym import pprint_registry as pprint_registry
    from agentgym_rl.gym import register as register
    from agentgym_rl.gym import spec as spec
    from agentgym_rl.gym import tool as tool
    from agentgym_rl.gym import wrappers as wrappers
    from agentgym_rl.rollout import Recorder as Recorder
    from agentgym_rl.rollout import Rollout as Rollout
    from agentgym_rl.run import runs as runs
    from agentgym_rl.run.launch import train as train
    from agentgym_rl.trainer import Trainer as Trainer

    StopTraining: type[Exception]
    check_env: Callable[..., Coroutine[Any, Any, Any]]
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__, of_extensions=("StopTraining", "check_env")
    )
    __all__ += ["__version__"]

__version__ = "0.1.0"
