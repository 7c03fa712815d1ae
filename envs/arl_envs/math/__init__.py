"""Generated math problems with a calculator: four levels, checked answers, no downloads."""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="math-v0",
    entry_point="arl_envs.math.env:MathEnv",
    description="generated arithmetic and word problems with a calculator tool (levels 1-4)",
)
