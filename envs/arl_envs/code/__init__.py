"""Programming tasks: generated families and data sets, graded by hidden tests in sandboxes."""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="code-v0",
    entry_point="arl_envs.code.env:CodeEnv",
    description="programming tasks with a Python tool, graded by hidden tests in a sandbox",
)
