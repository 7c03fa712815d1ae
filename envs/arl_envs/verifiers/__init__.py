"""Tasksets of Prime Intellect's verifiers (0.4): `verifiers:my-taskset`.

env      the environment: prompts, tools, turns and rewards of the taskset
tasks    the tasks of a taskset, separated by split
bridge   the process that has verifiers, whose pins are not ours: calls with deadlines
life     one such process, from its start to its end
there    the program in that process; inside has the code that it runs; they import nothing of ours
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="verifiers-v0",
    entry_point="arl_envs.verifiers.env:VerifiersEnv",
    argument="taskset",
    description="a taskset of verifiers, as verifiers:my-taskset",
)
