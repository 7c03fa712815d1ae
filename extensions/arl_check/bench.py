"""The command `arl bench`: the benchmarks of the source checkout."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import agentgym_rl
from agentgym_rl.cli import Command, json_flag, print_result
from agentgym_rl.core import ConfigError, near_match

_HELP = """\
Run a benchmark. The benchmarks are files of benchmarks/ in the source checkout;
the head of each describes its method, duration and environment variables.

  all          every benchmark, one after the other, and one report; hours
  clients      the training rows that real clients make through the gateway
  code         grading of programs: exploits, speed, the cost of isolation
  coding       the coding gym: exploits, speed, remains after kills
  crash        exactly-once training after kills at random moments
  curriculum   episodes that a curriculum saves
  distill      on-policy distillation beside rewards alone
  engine       the embedded engine beside transformers' generate
  env          the time of an environment step, beside vector environments
  exactness    rows beside the tokens that a real engine got and sampled
  faults       each part of a run broken in each way: detection and cost
  gateway      the gateway beside LiteLLM's proxy
  gpu          a first look at a GPU, eight minutes (--model, --out)
  math         the judgement of math answers beside math-verify's
  real         a real language model: time and memory by part (--model)
  sandbox      sandboxes beside programs without isolation
  selfplay     the results of self-play at tic-tac-toe
  scale        bytes between ranks that share rows, matrices and experts
  staleness    the effect of old episodes, and of corrections for it
  train        the main job: three seeds and the negative controls
  trainer      packed micro-batches beside padded ones, and TRL
  weights      pauses and cost of weight updates (--model)
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    parser.add_argument("name", metavar="NAME", help="the benchmark (see above)")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="a real model (engine, gpu, real, weights)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="toy sizes: it runs, its figures say nothing"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the report (gpu)")


def bench(args: Namespace) -> int:
    if args.dry_run:  # before the import, which reads it
        os.environ["ARL_BENCH_TOY"] = "1"
    benchmark = _benchmark(args.name)
    given = {name: getattr(args, name) for name in ("model", "out")}
    given = {name: value for name, value in given.items() if value}
    if unknown := given.keys() - inspect.signature(benchmark.run).parameters.keys():
        raise ConfigError(f"the benchmark {args.name} takes no --{min(unknown)}; leave it out")
    result = benchmark.run(**given)
    print_result(result, json.dumps(result, indent=2), as_json=args.json)
    return 0


def _benchmark(name: str) -> Any:
    """Import benchmarks/<name>.py of the source checkout (benchmarks are not installed)."""
    root = Path(agentgym_rl.__file__).parents[1]
    known = sorted(file.stem for file in (root / "benchmarks").glob("[a-z]*.py"))
    if name not in known:
        raise ConfigError(
            f"no benchmark {name!r}; known: {', '.join(known) or 'none'} (benchmarks come with the "
            f"source checkout){near_match(name, known)}"
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(f"benchmarks.{name}")


COMMAND = Command(
    summary="run a benchmark",
    description=_HELP,
    flags=_flags,
    run=bench,
    group="serve and scale",
    order=230,
)
