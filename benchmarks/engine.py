"""The embedded engine over HTTP compared with Hugging Face's `generate`, 64 requests at once.

Both sides get the same prompts of mixed lengths, sample at temperature 1 and produce the same
number of tokens (end-of-sequence is ignored); only ours also reports a log-prob per token. The
engine is a process of its own; each round runs one side, then the other, so that a busy machine
slows both alike. Figures are medians over the rounds.

Further rows compare the embedded engine with and without its prefix cache (`_reuse.py`).
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from agentgym_rl.models.resolve import BUNDLED

from . import _reuse
from ._common import engine_server, generate, hardware, model_config, over_http, versions
from ._toy import sized

ROUNDS = sized(5, toy=1)
CONCURRENCY = sized(64, toy=4)
PROMPT_TOKENS = (16, 96)
NEW_TOKENS = sized(128, toy=8)
GOALS = {"fused": 1.5, "cached": 1.0}
_ROUND_TIMEOUT_S = 300.0


def run(*, rounds: int = ROUNDS, num_threads: int = 1, model: Path | None = None) -> dict[str, Any]:
    """Measure three models; `met` is whether every goal holds.

    `rounds` timed ones follow one that is not; `num_threads` is given to both sides. `model`:
    measure only the prefix cache, with the model in this folder.
    """
    torch.set_num_threads(num_threads)
    if model is not None:
        return _result(_reuse.rows(model.name, model, rounds), {}, True, num_threads)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    met = True
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        for name, path, folder in _models(Path(scratch)):
            ours, theirs = _measure(folder, rounds, num_threads)
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            ratios[name] = round(ratio, 2)
            met = met and ratio >= GOALS[path]
            rows += [
                _row("agentgym-rl embedded, HTTP", name, path, ours),
                _row("transformers generate", name, "static batch", theirs),
            ]
    rows += _reuse.rows("bundled tiny (Qwen3)", BUNDLED, rounds)
    return _result(rows, ratios, met, num_threads)


def _result(
    rows: list[dict[str, Any]], ratios: dict[str, float], met: bool, num_threads: int
) -> dict[str, Any]:
    ratios |= {
        f"{row['work']}, prefix cache on / off": row["times_as_fast_as_off"]
        for row in rows
        if row.get("prefix_cache") == "by_version"
    }
    return {
        "name": "engine",
        "hardware": hardware(f"{num_threads} thread(s) a process"),
        "versions": versions(),
        "rows": rows,
        "ratios": ratios,
        "goal": "tokens/s over HTTP at 64 requests: fused >= 1.5x, others >= 1x generate",
        "met": met,
    }


def _models(scratch: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (name, expected decoder, folder) of the bundled model and two random ones."""
    yield "bundled tiny (Qwen3)", "fused", BUNDLED
    torch.manual_seed(0)
    llama = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    gpt2 = GPT2Config(
        vocab_size=1024,
        n_positions=512,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    for name, path, model in (
        ("random Llama", "fused", LlamaForCausalLM(llama)),
        ("random GPT-2", "cached", GPT2LMHeadModel(gpt2)),
    ):
        folder = scratch / name.replace(" ", "-")
        model.save_pretrained(folder)
        shutil.copyfile(BUNDLED / "tokenizer.json", folder / "tokenizer.json")
        yield name, path, folder


def _measure(folder: Path, rounds: int, num_threads: int) -> tuple[list[float], list[float]]:
    """Return the tokens/s of (the embedded engine, `generate`), one pair a round."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = _prompts(model.config.vocab_size)
    ours: list[float] = []
    theirs: list[float] = []
    overrides = [("engine.device", "cpu"), ("engine.num_threads", num_threads)]
    with engine_server(model_config(folder, overrides)) as url:
        for number in range(rounds + 1):
            pair = (_rate(lambda: _over_http(url, prompts)), _rate(lambda: _hf(model, prompts)))
            if number:  # the first round warms both up
                ours.append(pair[0])
                theirs.append(pair[1])
    return ours, theirs


def _prompts(vocab_size: int) -> list[list[int]]:
    draw = random.Random(0)
    low, high = PROMPT_TOKENS
    return [
        [draw.randrange(3, vocab_size) for _ in range(draw.randint(low, high))]
        for _ in range(CONCURRENCY)
    ]


def _rate(play: Callable[[], int]) -> float:
    """Return the sampled tokens per second of `play`, which returns their number."""
    start = time.perf_counter()
    tokens = play()
    return tokens / (time.perf_counter() - start)


def _over_http(url: str, prompts: list[list[int]]) -> int:
    lengths = [NEW_TOKENS] * len(prompts)
    over_http(url, prompts, lengths, timeout_s=_ROUND_TIMEOUT_S)
    return sum(lengths)


def _hf(model: Any, prompts: list[list[int]]) -> int:
    generate(model, prompts, NEW_TOKENS)
    return NEW_TOKENS * len(prompts)


def _row(system: str, model: str, path: str, rates: list[float]) -> dict[str, Any]:
    return {
        "system": system,
        "model": model,
        "path": path,
        "tokens_per_s": round(statistics.median(rates)),
        "tokens_per_s_min": round(min(rates)),
        "tokens_per_s_max": round(max(rates)),
    }
