"""The command `arl export`: episodes as data to train on, a checkpoint as a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from agentgym_rl.cli import (
    Command,
    agent_flag,
    config_flag,
    data_flag,
    env_flag,
    first_model_flag,
    json_flag,
    load_configuration,
    print_result,
    sandbox_flag,
    seed_flag,
)
from agentgym_rl.cli.output import counting
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import log

_HELP = """\
Write episodes as data to train on, one JSON object per line; or, with --model,
a checkpoint as a folder that from_pretrained loads.

  arl export --sft runs/NAME --out good.jsonl --min-reward 1
  arl export --sft kept --out data.jsonl    episodes of `arl eval --out kept`
  arl export --sft --oracle --env math --num 200 --out demos.jsonl
                                            an environment's own solutions
  arl export --filtered runs/NAME --out best.jsonl --min-reward 1 --most 2
                                            the two best of each group
  arl export --pairs runs/NAME --out pairs.jsonl --margin 0.2
                                            the best and the worst, for DPO
  arl export --kto runs/NAME --out labels.jsonl --min-reward 0.5
                                            all, labelled, for KTO
  arl export --model runs/NAME --out best   its best checkpoint, by
                                            trainer.best_metric
  arl export --model runs/NAME/checkpoints/step-20 --out model

Each line has messages and tools in the format of TRL's and Hugging Face's
`messages` datasets, and reward, task_id, env, split, episode_id and
policy_versions. Failed episodes are left out. For an episode that forked (its
agent rewrote history, or held several conversations) the last conversation is
written.

The columns are those of TRL: `messages`; `prompt`, `chosen` and `rejected`,
from the first reply that differs; or `prompt`, `completion` and `label`. Groups
without a pair (rewards too close, other prompts) are counted.

--format tokens writes input_ids and labels instead: the exact tokens that the
engine got and sampled (the label of other tokens is -100), one line per
conversation. Models behind an API leave no tokens.

--oracle plays the first --num tasks of an environment, of --split (train), with
the messages of its solve(), and writes the episodes with the full reward (or
--min-reward). The agent, the environment and their options come from flags,
keys and --config, as for `arl train`; messages and tools are those of a
rollout. `arl train --init sft --data demos.jsonl` learns them, and refuses
episodes of tasks that the run evaluates: `arl eval --eval.split=train --out
DIR` plays training tasks. With
--slips 0.5, half of the episodes have one wrong digit in a call or an answer,
as a careless teacher's would; all rewards are then written.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="a run, a checkpoint, or `arl eval --out`",
    )
    parser.add_argument("--sft", action="store_true", help="supervised data")
    parser.add_argument("--filtered", action="store_true", help="the best episodes of each group")
    parser.add_argument("--pairs", action="store_true", help="pairs of a group, for DPO")
    parser.add_argument("--kto", action="store_true", help="episodes with a label, for KTO")
    parser.add_argument(
        "--model", action="store_true", help="checkpoint in Hugging Face's format; RUN: the best"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="NEW", help="a JSONL file; --model: a folder"
    )
    first_model_flag(parser, "--base")
    parser.add_argument("--min-reward", type=float, metavar="X", help="minimum reward")
    parser.add_argument("--split", choices=["train", "eval"], help="only tasks of this split")
    parser.add_argument(
        "--format", choices=["messages", "tokens"], default="messages", help="default: messages"
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="pairs, or best episodes, of each group (1)"
    )
    parser.add_argument("--margin", type=float, metavar="X", help="--pairs: least difference")
    _oracle_flags(parser)


def _oracle_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--oracle", action="store_true", help="play an environment's own solutions (see above)"
    )
    parser.add_argument("--num", type=int, metavar="N", help="--oracle: the number of tasks")
    seed_flag(parser, "--oracle: the seed of the tasks")
    parser.add_argument(
        "--slips", type=float, metavar="SHARE", help="--oracle: the episodes with a wrong digit"
    )
    env_flag(parser, "--oracle: an id or module:Class")
    agent_flag(parser, "--oracle: an id or module:Class")
    config_flag(parser)
    data_flag(parser)
    sandbox_flag(parser)


_KINDS = ("sft", "filtered", "pairs", "kto")


def export(args: Namespace) -> int:
    log.setup()
    if sum(getattr(args, kind) for kind in ("model", *_KINDS)) != 1:
        raise ConfigError(
            "arl export writes supervised data with --sft, or of the best episodes with "
            "--filtered, pairs for DPO with --pairs, labelled episodes for KTO with --kto, a "
            "checkpoint's model with --model: give one of them"
        )
    _check_oracle(args)
    _check_kind(args)
    if args.model:
        return _export_model(args)
    report = _export_oracle(args) if args.oracle else _export_recorded(args)
    from arl_audit.recorded import export_lines

    print_result(report, "\n".join(export_lines(report)), as_json=args.json)
    return 0


def _check_kind(args: Namespace) -> None:
    """Refuse arguments that apply only to another kind of data."""
    if args.format != "messages" and not (args.sft or args.model):
        raise ConfigError("--format tokens goes with --sft alone")
    if args.most is not None and not (args.pairs or args.filtered):
        raise ConfigError(
            "--most counts pairs or best episodes: it goes with --pairs or --filtered"
        )
    if args.base and not args.model:
        raise ConfigError("--base is the first model of a run: it goes with --model")
    if args.margin is not None and not args.pairs:
        raise ConfigError("--margin is of pairs: it goes with --pairs")


def _check_oracle(args: Namespace) -> None:
    """Refuse arguments that contradict each other."""
    of_oracle = ("config", "env", "data", "agent", "sandbox", "seed", "num", "slips")
    given = [f"--{name}" for name in of_oracle if getattr(args, name) is not None]
    given += [f"--{key}" for key in args.overrides]
    if not args.oracle:
        if given:
            raise ConfigError(f"{', '.join(given)}: only with --oracle, which plays episodes")
        if args.folder is None:
            raise ConfigError("arl export: which FOLDER? A run, a checkpoint, or `arl eval --out`")
        return
    if not args.sft or args.format != "messages":
        raise ConfigError("--oracle writes messages: it goes with --sft alone")
    if args.folder is not None:
        raise ConfigError(
            f"{args.folder} and --oracle: the oracle plays new episodes; give one of the two"
        )
    if args.num is None or args.num < 1:
        raise ConfigError(f"--oracle needs --num N, the number of tasks to play; got {args.num}")
    if args.slips is not None and not 0 <= args.slips <= 1:
        raise ConfigError(f"--slips {args.slips}: expected a share of the episodes, 0 to 1")


def _export_recorded(args: Namespace) -> dict[str, Any]:
    from arl_audit.sft import Wanted, export_sft

    given = {name: getattr(args, name) for name in ("most", "margin")}
    wanted = Wanted(
        form=args.format,
        min_reward=args.min_reward,
        split=args.split,
        kind=next(kind for kind in _KINDS if getattr(args, kind)),
        **{name: value for name, value in given.items() if value is not None},
    )
    return export_sft(args.folder, args.out, wanted, on_progress=counting("read", "episodes"))


def _export_oracle(args: Namespace) -> dict[str, Any]:
    """Play the solutions of the configured environment, and write them.

    Raises:
        ConfigError: no oracle, too few tasks, no episode to write, or a file that exists.
    """
    from agentgym_rl.runtime import run_interruptible
    from arl_audit.oracle import paid_in_full, play_solutions
    from arl_audit.sft import Wanted, export_solutions

    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.out.exists():  # before all is played
        raise ConfigError(f"--out {args.out}: the file exists")
    say = log.now_and_then()

    async def play() -> tuple[float | None, list[Any]]:
        least = args.min_reward
        if least is None and not args.slips:
            least = await paid_in_full(config.env, config.rollout)
        return least, await play_solutions(
            config.env,
            config.agent,
            config.rollout,
            sandbox=config.sandbox,
            verifier=config.verifier_options,
            split=args.split or "train",
            seed=config.seed,
            num=args.num,
            slips=args.slips or 0.0,
            on_progress=lambda done: say(f"played {done:,} of {args.num:,} tasks"),
        )

    least, episodes = run_interruptible(play)
    return export_solutions(episodes, args.out, Wanted(min_reward=least), env_id=config.env.id)


def _export_model(args: Namespace) -> int:
    if args.min_reward is not None or args.split or args.format != "messages":
        raise ConfigError("--min-reward, --split and --format choose episodes: not with --model")
    from arl_audit.trained_model import export_trained  # torch, which only this needs

    report = export_trained(args.folder, args.out, base=args.base)
    why = f" ({report['metric']} {report['value']:.3f})" if report["metric"] else ""
    text = f"{report['checkpoint']}{why} is in {report['out']}"
    print_result(report, text, as_json=args.json)
    return 0


COMMAND = Command(
    summary="write episodes as supervised data, or a checkpoint as a model",
    description=_HELP,
    flags=_flags,
    run=export,
    examples=(
        "arl export --sft runs/NAME --out FILE      its episodes as supervised data",
        "arl export --model runs/NAME --out FOLDER  its best checkpoint as a model",
    ),
    group="look at runs",
    order=36,
)
