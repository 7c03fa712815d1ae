"""The command `arl train`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli.command import (
    Command,
    config_flags,
    json_flag,
    play_flags,
)
from agentgym_rl.cli.training import run_training, training_flags

_HELP = """\
Train an agent on an environment, on this machine or on a cluster. Engines
sample, the trainer trains, and the controller plays the episodes, all at the
same time.

  arl train --env math --agent react          the bundled model, in a minute
  arl train --config FILE --model FOLDER      keys from a file, another model
  arl train --preset dapo --steps 20 --run runs/dapo
                                              a published recipe
  arl train --resume runs/NAME                continue a run that has ended

The run folder gets metrics.jsonl, reward.png, the log of episodes
(episodes.db), checkpoints/ and export/, the trained model in Hugging Face's
format. Exit code: 0 done, 1 failed, 2 a wrong configuration, 130 Ctrl-C.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flags(parser)
    play_flags(parser)
    training_flags(parser)


def train(args: Namespace) -> int:
    from agentgym_rl.run.launch import train

    return run_training(args, train)


COMMAND = Command(
    summary="train an agent, on this machine or on a cluster",
    description=_HELP,
    flags=_flags,
    run=train,
    examples=("arl train --env math --agent react         train on the CPU, in minutes",),
    group="train and evaluate",
    order=10,
)
