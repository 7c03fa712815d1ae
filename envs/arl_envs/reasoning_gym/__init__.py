"""The generators of the reasoning-gym package: `reasoning_gym:chain_sum`.

env        one question, one answer, a reward
datasets   the available datasets, and their options
extract    the final answer of a reply
screen     the allowed form of answers that the package's scorer would execute
inside     the code that runs in the verifier pool only: generators and scorers
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="reasoning_gym-v0",
    entry_point="arl_envs.reasoning_gym.env:ReasoningGymEnv",
    argument="dataset",
    description="a generator of reasoning-gym, as reasoning_gym:chain_sum",
)
