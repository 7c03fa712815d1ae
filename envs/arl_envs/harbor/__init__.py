"""Terminal and repository tasks in Harbor's format (https://harborframework.com), in sandboxes.

env       the environment: an episode from the image to the verdict terminal  the tools: a shell
that keeps its state, and edits of files verify    the tests, in a fresh sandbox with the agent's
files transfer  the agent's files: collected, compared with the image's, put into the fresh sandbox
hooks     the files that test runners and shells load by themselves config    task.toml, typed: keys
that are applied, refused or ignored folder    a task folder, read without trust tasks     the
sources of tasks: a generator, a folder, a folder of folders oracle    the messages of a perfect
episode adapters  rows of SWE-bench and similar data sets, and Terminal-Bench folders, as tasks

Files that are copied to /tests and run there: `harness` (generated tasks), `select_tests` (rows)
and `arl_results` (Terminal-Bench), all with `arl_judge`.
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="harbor-v0",
    entry_point="arl_envs.harbor.env:HarborEnv",
    argument="source",
    description="terminal and repository tasks in Harbor's format, verified in a fresh sandbox",
)
