"""Reading what an assistant says."""

from agentgym_rl.tool_env import text_of

__all__ = ["text_of"]
