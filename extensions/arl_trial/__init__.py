"""The trials before a run: of its first prompts, a user's code, and the model; and the watch over
the code while the run lasts.

    keys            rollout.trial_s: the time limit of the trial of code; 0 turns it off
    prompt_lengths  the lengths of first prompts, against the model's context
    trial           one episode of the environment and the agent, before engines start
    pays            the search for an environment that can pay no reward
    scripted        its replies: the solution, or calls of the tools and a short text
    blocking        the interruption of steps that block the event loop, and the time that is lost
    model           the start of the trial of the model and of a user's parts of training
    model_process   that trial, in a process that has torch

The trial of code plays in the process and the event loop of the run, because that is where the code
will run.
"""

BUILDS_ON = ("arl_endpoints",)
