"""A prompt, a reward function, nothing else: `arl train --env reward:module:function --data FILE`.

def function(completion: str, row: dict) -> float: ...

env.py      sends the prompt, scores the reply     options.py   the options of the user
tasks.py    rows to tasks: prompt, processor, split    scoring.py   calling the function
judged.py   a judge or a reward model in its place: --env reward --env.options.judge.model=NAME
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="reward-v0",
    entry_point="arl_envs.reward.env:RewardEnv",
    argument="function",
    description="prompts of a file, scored by reward:module:function, or by a judge",
)
