"""Any Gymnasium environment whose actions can be said in words: `gymnasium:FrozenLake-v1`.

env       the environment: replies to actions, observations to messages
actions   reading a reply as an element of the action space
observations   an element of any observation space as text
toy_text  how the four toy-text environments are put into words
tasks     seeds, split by what episodes begin with
oracle    shortest paths, where the environment shows its transitions
"""

from agentgym_rl.gym.specs import EnvSpec

SPEC = EnvSpec(
    id="gymnasium-v0",
    entry_point="arl_envs.gymnasium.env:GymnasiumEnv",
    argument="id",
    description="a Gymnasium environment played in text, as gymnasium:FrozenLake-v1",
)
