"""The command `arl engine`: one engine, which a run starts, or a user."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cli.command import (
    Command,
    begin_process_of_run,
    config_flags,
    key_flag,
    load_configuration,
)
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import log

if TYPE_CHECKING:
    from agentgym_rl.config.engine import OwnEngineConfig

_HELP = """\
Serve a policy over HTTP until SIGTERM or Ctrl-C.

  arl engine --port 8000                     the bundled model
  arl engine --model.path FOLDER             a model folder of Hugging Face
  arl engine --backend vllm --engine.python=PYTHON_OF_VLLM      sglang likewise
  arl engine --reward-model FOLDER           a sequence classifier, at /classify

The embedded engine serves to OpenAI's SDK (without a key, and without chats: it
knows no template, the gateway of `arl serve` does)
  /v1/completions, /v1/models
and to runs, as vLLM does,
  /inference/v1/generate                     token ids in, sampled ids out
  /inference/v1/abort_requests               end requests
  /pause, /resume, /is_paused                between two decode steps
  /sleep, /wake_up, /is_sleeping             release and restore memory
  /start_weight_update, /update_weights, /finish_weight_update
  /update_weight_version, /weight_info       the label of the served weights
  /health, /metrics, /version
These routes have no password: keep them on 127.0.0.1 or a private network.
Another backend becomes this process, with its own routes (arl docs engines).
"""


def _flags(parser: ArgumentParser) -> None:
    config_flags(parser)
    text = "embedded (default), vllm or sglang"
    key_flag(parser, "--backend", "engine.type", metavar="TYPE", help=text)
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index of this server")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000")
    parser.add_argument("--weight-version", default="0.0", metavar="LABEL", help="label (0.0)")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="log every request, as JSONL")
    parser.add_argument(
        "--reward-model", metavar="MODEL", help="serve this sequence classifier instead"
    )


def engine(args: Namespace) -> int:
    begin_process_of_run()
    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.reward_model is not None:
        return _reward_model(args, config.own_engine)
    from agentgym_rl.engines import Launch, kind_of
    from agentgym_rl.models import model_folder, with_model_defaults

    model_dir = model_folder(config.model, config.env.id)
    launch = Launch(
        config=with_model_defaults(config, model_dir),
        host=args.host,
        port=args.port,
        index=args.index,
        model_dir=model_dir,
        label=args.weight_version,
        run_dir=args.config.parent if isinstance(args.config, Path) else None,
        journal=args.journal,
    )
    kind_of(config.engine).serve(launch)
    return 0


def _reward_model(args: Namespace, engine: OwnEngineConfig) -> int:
    from agentgym_rl.engines import kind_of

    if args.journal is not None:
        raise ConfigError("--journal logs what a policy samples: not with --reward-model")
    kind = kind_of(engine)
    kind.serve_reward_model(args.reward_model, engine, host=args.host, port=args.port)
    return 0


COMMAND = Command(
    summary="serve a policy over the engine protocol",
    description=_HELP,
    flags=_flags,
    run=engine,
    group="",  # a run starts it
    order=190,
)
