"""An adapter from this package's environments to Gymnasium, without async.

    gymnasium.make("agentgym_rl.gym.gymnasium:arl/math-v0")

Gymnasium imports the module before the colon, this one, which registers the ids of all our
environments, and then looks up the rest.

env          a `gymnasium.Env` around one of this package's environments
ids          the ids of our environments in Gymnasium's registry
spaces       replies and messages as Gymnasium spaces
loop_thread  the event loop on which the environment runs
"""

from .ids import publish_all

publish_all()
