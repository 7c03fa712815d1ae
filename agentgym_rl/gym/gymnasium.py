"""Our environments for Gymnasium, without async.

    gymnasium.make("agentgym_rl.gym.gymnasium:arl/math-v0")

Gymnasium imports the module before the colon, this one, and then looks up the rest. The import
registers the ids of all our environments: arl_envs/gymnasium/made_there.py does it.
"""

from typing import Any

from agentgym_rl.core import entry_points_of

SyncGym: type[Any] = entry_points_of("names")["SyncGym"].load()
"""The `gymnasium.Env` of an environment. An error of its import is raised as it is: it names the
module that is missing, such as Gymnasium."""
