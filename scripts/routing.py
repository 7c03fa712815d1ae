"""Measure what routing replay changes: the log-probs of a mixture of experts by the embedded engine
and by the trainer, with and without the engine's choice of experts.

    python scripts/routing.py

prints the table of docs/algorithms.md, "Mixtures of experts". The models are random, and large
enough for scores of experts to be close to each other; it takes about a minute of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers as T
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.algo import Tally, pack_rows
from agentgym_rl.core import Delta, Row, SamplingParams
from agentgym_rl.core.token_records import experts_of
from agentgym_rl.engines import HttpEngine
from agentgym_rl.runtime import serving
from agentgym_rl.trainer import Policy, World, join_world

_Dtype = Literal["float32", "bfloat16"]
VOCAB, PROMPTS, PROMPT_TOKENS, REPLY_TOKENS = 2000, 16, 64, 48
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LATENT: dict[str, Any] = {
    **{"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16},
    **{"v_head_dim": 32, "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 32},
    **{"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
}
MODELS: dict[str, Any] = {
    "Qwen3-MoE, 4 of 32 experts": T.Qwen3MoeConfig(
        **{**_SIZES, "head_dim": 32}, moe_intermediate_size=64, num_experts=32,
        num_experts_per_tok=4, norm_topk_prob=True,
    ),
    "Mixtral, 2 of 8 experts": T.MixtralConfig(
        **_SIZES, num_local_experts=8, num_experts_per_tok=2
    ),
    "DeepSeek-V3, 4 of 32 experts": T.DeepseekV3Config(
        **{**_SIZES, **_LATENT}, moe_intermediate_size=64, num_experts_per_tok=4
    ),
}  # fmt: skip
DTYPES: Sequence[tuple[_Dtype, _Dtype]] = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)
"""The dtypes of engine and trainer."""


async def sample(folder: Path, dtype: Any) -> list[tuple[list[int], Delta]]:
    """Return prompts with replies by the embedded engine; prompts share their first half."""
    config = EmbeddedEngineConfig(device="cpu", max_model_len=256, dtype=dtype, max_num_seqs=16)
    engine = EmbeddedEngine(
        load_model(folder, config), model_dir=folder, config=config, seed=0, weight_version="0.0"
    )
    rng = np.random.default_rng(0)
    head = rng.integers(0, VOCAB, PROMPT_TOKENS // 2).tolist()
    prompts = [head + rng.integers(0, VOCAB, len(head)).tolist() for _ in range(PROMPTS)]
    params = SamplingParams(max_tokens=REPLY_TOKENS, experts_from=0)
    app = App(engine, served_model_name="moe")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        client = HttpEngine(url)

        async def ask(number: int) -> Delta:
            name = f"r{number}"
            sampled = client.generate(prompts[number], params, request_id=name, session_id=name)
            return [delta async for delta in sampled][-1]

        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(ask(number)) for number in range(PROMPTS)]
        await client.close()
    return [(prompt, job.result()) for prompt, job in zip(prompts, jobs, strict=True)]


def row_of(prompt: list[int], reply: Delta) -> Row:
    length = len(prompt) + len(reply.token_ids)
    sampled = np.arange(length) >= len(prompt)
    behavior = np.zeros(length, np.float32)
    behavior[sampled] = reply.logprobs
    versions = np.where(sampled, 0, -1).astype(np.int32)
    return Row(
        tokens=np.array([*prompt, *reply.token_ids], np.int32),
        loss_mask=sampled,
        behavior_logprobs=behavior,
        policy_versions=versions,
        admitted_versions=versions,
        temperatures=sampled.astype(np.float32),
        turn_ids=versions,
        times_s=np.zeros(length),
        experts=experts_of(reply.experts, length),
    )


def lines(name: str, folder: Path, world: World) -> Iterator[str]:
    """Yield the lines of a model."""
    for engine, trainer in DTYPES:
        rows = [row_of(*pair) for pair in asyncio.run(sample(folder, engine))]
        policy = Policy.load(folder, world, compute_dtype=trainer, routing_replay="on")
        behavior = torch.tensor(np.concatenate([r.behavior_logprobs[r.loss_mask] for r in rows]))
        cells = []
        for some in ([replace(row, experts=None) for row in rows], rows):
            with torch.no_grad():
                gaps = (policy.logprobs(pack_rows(some, share=True)) - behavior).abs()
            error = float(gaps.exp().mean()) - 1
            cells.append(f"{float(gaps.max()):.1e} | {float(gaps.mean()):.1e} | {error:.1e}")
        tally = Tally()
        policy.tally_routing(tally)
        differ = tally.values()["mismatch/experts_differ"]
        yield f"| {name} | {engine} | {trainer} | {differ:.2%} | {' | '.join(cells)} |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    with join_world() as world, tempfile.TemporaryDirectory() as place:
        for number, (name, config) in enumerate(MODELS.items()):
            folder = Path(place) / str(number)
            torch.manual_seed(0)
            T.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            for line in lines(name, folder, world):
                print(line, flush=True)


if __name__ == "__main__":
    main()
