"""The command `arl serve`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING

from agentgym_rl.cli import (
    Command,
    config_flags,
    engine_flag,
    json_flag,
    loudness_flags,
    run_training,
    training_flags,
)

if TYPE_CHECKING:
    from agentgym_rl.run.launch import Job

_HELP = """\
Train a model on episodes that other programs play, in any language. A program
opens a session with the admin key, uses the OpenAI endpoint with the session's
key, posts a reward, and closes the session. arl docs serve has an example.

  arl serve --steps 40 --gateway.port=8000 --run runs/mine
  cat runs/mine/serve.json                    the endpoint, and the admin key

rollout.group_size sessions with the same task are a group, and are compared
with each other. If the staleness bound admits no session, the answer is 429:
retry later. The admin key comes from ARL_ADMIN_KEY (serve.admin_key_env); on
127.0.0.1 a key is generated if this variable is not set.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flags(parser)
    engine_flag(parser)
    loudness_flags(parser)
    training_flags(parser)


def serve(args: Namespace) -> int:
    from agentgym_rl.run.launch import launch

    def job() -> Job:
        from arl_serve.run import serve

        return serve

    return run_training(args, partial(launch, job))


COMMAND = Command(
    summary="train on the episodes of other programs, in any language",
    description=_HELP,
    flags=_flags,
    run=serve,
    examples=("arl serve --model FOLDER                   train on episodes of your programs",),
    group="serve and scale",
    order=20,
)
