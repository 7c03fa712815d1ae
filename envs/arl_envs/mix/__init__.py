"""A mix of several environments: tasks are interleaved by weight, members keep their own limits."""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="mix-v0",
    entry_point="arl_envs.mix.env:MixEnv",
    argument="envs",
    description="several environments in one run, by weight: mix:math=2,code=1",
)
