"""The Gymnasium environments whose actions can be written as text: `gymnasium:FrozenLake-v1`.

env       the environment: replies to actions, observations to messages
actions   reading a reply as an element of the action space
observations   an element of any observation space as text
toy_text  the texts of the four toy-text environments
tasks     seeds, split by the openings of their episodes
oracle    shortest paths, in environments that show their transitions
made_there  the opposite direction: our environments, made by `gymnasium.make`
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="gymnasium-v0",
    entry_point="arl_envs.gymnasium.env:GymnasiumEnv",
    argument="id",
    description="a Gymnasium environment played in text, as gymnasium:FrozenLake-v1",
)
