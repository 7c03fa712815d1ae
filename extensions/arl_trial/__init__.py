"""The trial of a user's code before a run, and the watch over it while the run lasts.

    keys        rollout.trial_s: the time limit of the trial; 0 turns it off
    trial       one episode of the environment and the agent, before engines start
    pays        the search for an environment that can pay no reward
    scripted    the replies of the trial: the solution, or calls of the tools and a short text
    blocking    the interruption of steps that block the event loop, and the time that is lost

A trial plays in the process and the event loop of the run, because that is where the code will run.
"""

BUILDS_ON = ("arl_endpoints",)
