"""The contracts of environments, agents and sandboxes, and their registry."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .env import Env as Env
    from .env import Step as Step
    from .registry import listing as listing
    from .registry import make as make
    from .registry import make_agent as make_agent
    from .registry import make_sandbox as make_sandbox
    from .registry import pprint_registry as pprint_registry
    from .registry import register as register
    from .registry import spec as spec
    from .sandbox import Sandbox as Sandbox
    from .sandbox import SandboxBackend as SandboxBackend
    from .sandbox import Session as Session
    from .sandbox import SessionKind as SessionKind
    from .sandbox_records import WORK_DIR as WORK_DIR
    from .sandbox_records import Capabilities as Capabilities
    from .sandbox_records import ExecResult as ExecResult
    from .sandbox_records import Image as Image
    from .sandbox_records import ImageRecipe as ImageRecipe
    from .sandbox_records import Limits as Limits
    from .sandbox_records import Probe as Probe
    from .sandbox_records import ProbeReport as ProbeReport
    from .sandbox_records import SandboxStats as SandboxStats
    from .sandbox_records import SkippedFile as SkippedFile
    from .services import NO_SERVICES as NO_SERVICES
    from .services import Services as Services
    from .services import Verifier as Verifier
    from .services import running_services as running_services
    from .specs import EnvSpec as EnvSpec
    from .specs import Spec as Spec
    from .step_clock import OffTheClock as OffTheClock
    from .sync_env import SyncEnv as SyncEnv
    from .sync_env import to_async as to_async
    from .tool_env import ToolEnv as ToolEnv
    from .tool_env import ToolError as ToolError
    from .tool_env import tool as tool
    from .verifier import VerifierPool as VerifierPool
    from .verifier import VerifierStats as VerifierStats
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
