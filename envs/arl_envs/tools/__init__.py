"""Tool use in a shop: a relational world, requests, and an end state that is checked."""

from agentgym_rl.gym.specs import EnvSpec

SPEC = EnvSpec(
    id="tools-v0",
    entry_point="arl_envs.tools.env:ToolsEnv",
    description="requests to a shop's back office, carried out by tools (levels 1-5)",
)
