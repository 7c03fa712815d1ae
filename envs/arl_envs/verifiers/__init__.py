"""Tasksets of Prime Intellect's verifiers (0.4): `verifiers:my-taskset`.

env      the environment: a prompt, one reply, the taskset's reward
tasks    which tasks a taskset has, apart by split
bridge   the process that has verifiers, whose pins are not ours: calls with deadlines
life     one such process, from its start to its end
there    the program that runs in it; it imports nothing of ours
"""

from agentgym_rl.specs import EnvSpec

SPEC = EnvSpec(
    id="verifiers-v0",
    entry_point="arl_envs.verifiers.env:VerifiersEnv",
    argument="taskset",
    description="a single-turn taskset of verifiers, as verifiers:my-taskset",
)
