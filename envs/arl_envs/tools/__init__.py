"""An environment for tool use in a shop: a relational world, requests, and a checked end state."""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="tools-v0",
    entry_point="arl_envs.tools.env:ToolsEnv",
    description="requests to a shop's back office, carried out by tools (levels 1-5)",
)
