"""Make a bundled tiny model from nothing: tokenizer, warm-up, model folder.

    python scripts/tiny_model/make.py --family math --out DIR --seed 0

Takes a few minutes on one CPU core. The same seed on the same machine and library versions
gives the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from families import FAMILIES
from family import Size, WarmUp
from measure import measure_folder
from network import new_network, save_bundle
from tokenizer import build_tokenizer
from transformers import PreTrainedTokenizerFast
from warmup import warm_up

Part = TypeVar("Part", Size, WarmUp)
SIZES = ("hidden", "layers", "heads", "key_value_heads", "feed_forward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, default="math")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clean-steps", type=int)
    parser.add_argument("--mixed-steps", type=int)
    parser.add_argument("--rows-per-step", type=int)
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="of the network")
    parser.add_argument(
        "--tokenizer", type=Path, help="folder with the tokenizer; by default one is trained"
    )
    parser.add_argument(
        "--tokenizer-texts", type=int, default=4000, help="demonstrations that it is trained on"
    )
    parser.add_argument(
        "--tasks", type=int, default=1024, help="held-out tasks to measure; 0: none"
    )
    options = parser.parse_args()
    family = FAMILIES[options.family]
    plan = _replaced(family.plan, options, ("clean_steps", "mixed_steps", "rows_per_step"))
    size = _replaced(family.size, options, SIZES)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = (
        PreTrainedTokenizerFast.from_pretrained(options.tokenizer)
        if options.tokenizer
        else build_tokenizer(family, seed=options.seed, num_texts=options.tokenizer_texts)
    )
    network = new_network(tokenizer, size, seed=options.seed)
    parameters = sum(p.numel() for p in network.parameters())
    print(f"tokenizer: {len(tokenizer)} tokens; network: {parameters:,} parameters", flush=True)
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            total = plan.clean_steps + plan.mixed_steps
            took = time.monotonic() - began
            print(f"step {step}/{total}  loss {loss:.4f}  {took:.0f} s", flush=True)

    warm_up(network, tokenizer, family, plan, seed=options.seed, report=report)
    save_bundle(network, tokenizer, options.out)
    written = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"wrote {options.out} ({written:,} bytes)", flush=True)
    if options.tasks:
        for line in measure_folder(options.out, family, num_tasks=options.tasks):
            print(line, flush=True)


def _replaced(part: Part, options: argparse.Namespace, names: Sequence[str]) -> Part:
    """Return the family's plan or size, with the numbers of the arguments."""
    asked = {name: getattr(options, name) for name in names}
    return dataclasses.replace(part, **{k: v for k, v in asked.items() if v is not None})


if __name__ == "__main__":
    main()
