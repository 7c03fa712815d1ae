"""The command `arl eval`: held-out tasks, the comparison of models, and their ratings."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cli.command import (
    Command,
    config_flags,
    given_arguments,
    json_flag,
    key_flag,
    play_flags,
)
from agentgym_rl.cli.output import print_json, progress_of
from agentgym_rl.core import ConfigError

if TYPE_CHECKING:
    from agentgym_rl.evaluate import EvalTarget

_HELP = """\
Evaluate a model or a finished run on held-out tasks, as training does.

  arl eval --run runs/NAME                   the result of a run
  arl eval --env math -m FOLDER_OR_ID -n 100 -r 3
                                             a model, on an engine started here:
                                             100 tasks, three samples of each
  arl eval --env math --model gpt-4o-mini --engine openai
                                             a model behind an API
  arl eval --env math --model anthropic/NAME --engine litellm
                                             a model that LiteLLM supports

--engine openai uses an OpenAI-compatible URL, --engine.base_url, including its
/v1. The key comes from the environment variable OPENAI_API_KEY, or from the one
that --engine.api_key_env names (empty: no key). Agents never see the key.
--engine litellm needs the extra litellm (arl docs install#extras), a model name
like PROVIDER/NAME, and keys in LiteLLM's variables (ANTHROPIC_API_KEY, ...).
Every request has the parameters of --engine.send, by default temperature
(eval.temperature) and max_tokens (rollout.max_tokens). If a model
refuses one, choose others: --engine.send=temperature,max_completion_tokens. For
these engines rollout.max_tokens is 1024 unless it is set, and a reply may be
silent for 120 s (rollout.turn_timeout_s).

A failing endpoint never gives a reward of 0: requests are sent again, then
episodes are played again, then the evaluation ends with an error. A wrong key,
model or parameter ends it at once.

-r 8 (eval.samples_per_task) plays each task 8 times and shows pass@1, 2, 4, 8;
eval.success_reward is the least reward of a success. Intervals are 95 %, with
errors clustered by task. The cost is computed from --eval.price_prompt and
--eval.price_completion (USD per million tokens), or from LiteLLM's prices; an
unknown cost is not shown.

--out DIR keeps finished episodes in DIR/episodes.db. The same command again
plays the missing episodes; another configuration is refused. Several --model
are evaluated one after the other on the same tasks, and compared. Each is a
model as above, a run's folder or RUN/checkpoints/step-N with the engine of that
run, or ENGINE:NAME with an engine of its own:

  arl eval --env math --model runs/NAME --model litellm:gemini/NAME --out cmp
  arl eval --compare cmp/*                   the table again, from folders

--round-robin lets them play each other at a game of two seats, each pair every
held-out task at both seats, and rates them (arl docs self-play):

  arl eval --env tictactoe --round-robin --model runs/NAME --model bundled
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flags(parser, action="append")
    play_flags(parser, "embedded, vllm, sglang, openai (a URL), litellm")
    key_flag(parser, "-n", "eval.num_tasks", type=int, metavar="NUM", help="held-out tasks")
    text = "samples of each task, for pass@k"
    key_flag(parser, "-r", "eval.samples_per_task", type=int, metavar="SAMPLES", help=text)
    parser.add_argument("--run", metavar="DIR", help="evaluate this run's exported model")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="evaluate RUN/checkpoints/step-N instead"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep every episode there; resumes, too"
    )
    parser.add_argument(
        "--compare", type=Path, nargs="+", metavar="DIR", help="only the table, of folders of --out"
    )
    parser.add_argument(
        "--round-robin", action="store_true", help="let the models play each other, and rate them"
    )


def evaluate(args: Namespace) -> int:
    if args.compare:
        return _compare(args)
    from agentgym_rl.cli.eval_targets import evaluated

    targets = evaluated(args)
    if args.round_robin:
        return _round_robin(args, targets)
    from agentgym_rl.evaluate import compare, evaluate_all
    from agentgym_rl.report import print_table, summary_lines
    from agentgym_rl.runtime import paced_collections, run_interruptible

    with progress_of(targets[0].config.logging, total_steps=0) as progress, paced_collections():
        found = run_interruptible(
            lambda: evaluate_all(targets, progress, out=args.out),
            hang_s=max(each.config.rollout.patience_s for each in targets),
        )
    if len(found) > 1:
        result = compare(found)
        print_table(result)
    else:
        result = found[0].report
        if not args.json:
            print("\n".join(summary_lines(result)))
    if args.json:
        print_json(result)
    return 0


def _round_robin(args: Namespace, targets: Sequence[EvalTarget]) -> int:
    """Let models play each other, and print their ratings."""
    if len(targets) < 2 or args.out:
        raise ConfigError(
            f"--round-robin with {len(targets)} model{'s' * (len(targets) != 1)}"
            f"{' and --out' * bool(args.out)}: name two or more (--model), and no --out, as games "
            "are not kept"
        )
    from agentgym_rl.evaluate.matches import matches
    from agentgym_rl.runtime import paced_collections, run_interruptible

    games = matches()
    with progress_of(targets[0].config.logging, total_steps=0) as progress, paced_collections():
        result = run_interruptible(
            lambda: games.play(targets, progress),
            hang_s=max(each.config.rollout.patience_s for each in targets),
        )
    games.show(result)
    if args.json:
        print_json(result)
    return 0


def _compare(args: Namespace) -> int:
    """Print the comparison table of existing evaluations."""
    clash = [
        "keys of the configuration" if name == "overrides" else f"--{name}"
        for name in sorted(given_arguments(args).keys() - {"json", "compare"})
    ]
    if clash:
        raise ConfigError(f"--compare only reads folders: leave out {', '.join(clash)}")
    from agentgym_rl.evaluate import compare_folders
    from agentgym_rl.report import print_table

    comparison = compare_folders(args.compare)
    print_table(comparison)
    if args.json:
        print_json(comparison)
    return 0


COMMAND = Command(
    summary="evaluate a model or a finished run on held-out tasks",
    description=_HELP,
    flags=_flags,
    run=evaluate,
    examples=(
        "arl eval  --run runs/NAME                  held-out reward of a finished run",
        "arl eval  --engine openai --model NAME     the same for a model behind a URL",
    ),
    group="train and evaluate",
    order=30,
)
