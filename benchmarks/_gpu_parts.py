"""The parts of `arl bench gpu`, each a function that returns rows; a process of its own runs one.

    python -m benchmarks._gpu_parts PART OUT SCRATCH [--toy] [--model FOLDER]

The toy sizes run on a CPU. OUT gets {"rows": […], "skipped": […]}.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import random
import shutil
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config

from agentgym_rl.algo import PackedRows, pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import Delta, Row, SamplingParams
from agentgym_rl.engines import HttpEngine
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import serving
from agentgym_rl.storage import WeightsFolder

from ._common import engine_server, model_config
from ._gpu_steps import Timer, idle_row, learn, loading_rows, peak_gb, policy_of, step_row
from ._runs import RunFailed, train
from .trainer_loops.packing import half_sampled, row
from .weights import _Case

Dtype = Literal["float32", "bfloat16"]
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SHAPES: Mapping[str, tuple[int, int, int, int]] = {
    "toy": (64, 96, 2, 2),
    "0.1B": (512, 1536, 12, 8),
    "0.6B": (1024, 3072, 28, 16),
    "1.7B": (2048, 6144, 28, 16),
}
"""The `_SIZES` of Qwen3 models with random weights; 0.6B and 1.7B are Qwen's own."""


@dataclass(frozen=True)
class Setting:
    """The sizes of everything that a part makes and measures."""

    scratch: Path
    toy: bool = False
    model: Path | None = None
    """The folder of a real model."""
    skipped: list[str] = field(default_factory=list)
    """The parts that could not be measured, with the reasons."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Return the device of engine and trainer."""
        return "cpu" if self.toy else "cuda"

    @property
    def sizes(self) -> Sequence[str]:
        """Return the names of the models that are measured."""
        return tuple(SHAPES)[:1] if self.toy else tuple(SHAPES)[1:]

    def folder(self, size: str) -> Path:
        """Return the folder of a random model, made once, in bfloat16 (float32 if it is a toy)."""
        folder = self.scratch / size
        if (folder / "config.json").exists():
            return folder
        torch.manual_seed(0)
        with torch.device(self.device):
            model = AutoModelForCausalLM.from_config(shape(size))
        model.to(torch.float32 if self.toy else torch.bfloat16).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(BUNDLED / file, folder / file)
        return folder


def shape(size: str) -> Qwen3Config:
    """Return the configuration of a random model; a toy has the bundled tokenizer's vocabulary."""
    sizes = dict(zip(_SIZES, SHAPES[size], strict=True))
    return Qwen3Config(
        **sizes,
        vocab_size=640 if size == "toy" else 151_936,
        num_key_value_heads=sizes["num_attention_heads"] // 2,
        head_dim=32 if size == "toy" else 128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def parity(setting: Setting) -> list[dict[str, Any]]:
    """Compare the log-probs of engine and trainer for the same sampled tokens, in both dtypes."""
    folder = setting.folder(setting.sizes[0])
    rows: list[dict[str, Any]] = []
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        prompts, replies, _ = _sampled(setting, folder, dtype, requests=16, prompt=40, reply=32)
        sampled = [_row(p, d) for p, d in zip(prompts, replies, strict=True)]
        recorded = np.concatenate([row.behavior_logprobs[row.loss_mask] for row in sampled])
        with policy_of(folder, setting.device, dtype) as policy, torch.no_grad():
            found = policy.logprobs(pack_rows(sampled)).float().cpu().numpy()
        gaps = np.abs(found - recorded)
        allowed = {"float32": 1e-3, "bfloat16": 0.05}[dtype]
        rows.append(
            {
                "dtype": dtype,
                "tokens": len(gaps),
                "mean_gap_nats": float(gaps.mean()),
                "max_gap_nats": float(gaps.max()),
                "allowed_mean": allowed,
                "agrees": bool(gaps.mean() <= allowed),
            }
        )
    return rows


def attention(setting: Setting) -> list[dict[str, Any]]:
    """Compare `trainer.attention` varlen with rows in both dtypes: time of forward and backward,
    log-probs."""
    folder, rows = setting.folder(setting.sizes[0]), list[dict[str, Any]]()
    lengths = (20, 35, 50) if setting.toy else (64, 128, 256, 512, 1024, 96, 160, 800) * 2
    packs = {
        "apart": _random_pack(lengths),
        "shared beginning": _random_pack(lengths, shared=lengths[0]),
    }
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    kinds: tuple[Literal["rows", "varlen"], ...] = ("rows", "varlen")
    if setting.toy:
        setting.skipped.append("varlen: torch's kernels need a GPU")
        kinds = kinds[:1]
    for dtype, (name, packed) in itertools.product(dtypes, packs.items()):
        logprobs: dict[str, torch.Tensor] = {}
        for kind in kinds:
            config = TrainerConfig(attention=kind)
            with policy_of(folder, setting.device, dtype, trainer=config) as policy:
                seconds = _timer(setting)(lambda p=policy, rows=packed: learn(p, rows))
                with torch.no_grad():
                    logprobs[kind] = policy.logprobs(packed).float().cpu()
                peak = peak_gb()
            rows.append(
                {
                    "dtype": dtype,
                    "rows": name,
                    "attention": kind,
                    "tokens": packed.tokens.shape[1],
                    "tokens_per_s": round(packed.tokens.shape[1] / seconds),
                    "mean_gap_to_rows_nats": float(
                        (logprobs[kind] - logprobs["rows"]).abs().mean()
                    ),
                    "gpu_peak_gb": peak,
                }
            )
    return rows


def engine(setting: Setting) -> list[dict[str, Any]]:
    """Measure the tokens a second that the embedded engine samples, over HTTP."""
    rows: list[dict[str, Any]] = []
    requests, prompt, reply = (4, 10, 8) if setting.toy else (64, 64, 128)
    for size in setting.sizes:
        folder = setting.folder(size)
        _, replies, seconds = _sampled(
            setting, folder, "bfloat16", requests=requests, prompt=prompt, reply=reply
        )
        tokens = sum(len(delta.token_ids) for delta in replies)
        rows.append(
            {
                "model": size,
                "requests": requests,
                "tokens": tokens,
                "tokens_per_s": round(tokens / seconds),
                "gpu_peak_gb": peak_gb(),
            }
        )
    return rows


def trainer(setting: Setting) -> list[dict[str, Any]]:
    """Measure steps of the trainer on packed rows, and what their time is for."""
    return [
        {"model": size, **step_row(setting.folder(size), setting.device, toy=setting.toy)}
        for size in setting.sizes
    ]


def loading(setting: Setting) -> list[dict[str, Any]]:
    """Measure the memory that a rank takes while it loads, with weights in both dtypes."""
    size = setting.sizes[-1]
    return [{"model": size, **row} for row in loading_rows(setting.folder(size), setting.device)]


def idle(setting: Setting) -> list[dict[str, Any]]:
    """Measure the share of the time that two ranks wait for each other in a batch."""
    size = setting.sizes[0]
    return [{"model": size, **idle_row(setting.folder(size), setting.device, toy=setting.toy)}]


def publication(setting: Setting) -> list[dict[str, Any]]:
    """Measure updates of an engine that samples: by shared memory; by vLLM's ipc, if it is here."""
    size = setting.sizes[0] if setting.toy else "0.6B"
    folder = setting.folder(size)
    base = load_file(folder / "model.safetensors")
    num_bytes = sum(tensor.nbytes for tensor in base.values())
    dtype = "float32" if setting.toy else "bfloat16"
    overrides = (
        ("engine.device", setting.device),
        ("engine.dtype", dtype),
        ("engine.max_model_len", 512),
    )
    with (
        engine_server(model_config(folder, overrides)) as url,
        WeightsFolder(f"bench-gpu-{folder.name}", need_bytes=4 * num_bytes) as shared,
    ):
        case = _Case("embedded", url, "recompute", shared, base, folder)
        published = asyncio.run(case.play(1 if setting.toy else 3))
    rows = [
        {
            "transport": "shm",
            "model": size,
            "gigabytes": round(num_bytes / 1e9, 3),
            "stage_median_s": statistics.median(it.stage_s for it in published),
            "pause_median_s": statistics.median(it.pause_s for it in published),
            "memcpy_s": num_bytes / statistics.median(case.copy_bytes_per_s),
            "failed_turns": case.failed,
        }
    ]
    if importlib.util.find_spec("vllm") is None or setting.toy:
        setting.skipped.append("ipc: it is vLLM's own, on a GPU, and vLLM is not installed here")
        return rows
    flags = ("--engine=vllm", "--weights.transport=ipc", "--cluster.colocated=true", "--steps=2")
    run = train("ipc", (*_MATH, *flags, "--eval.num_tasks=0"))
    syncs = [step["time/weight_sync"] for step in run.steps]
    return [
        *rows,
        {"transport": "ipc", "model": "tiny", "pause_median_s": statistics.median(syncs)},
    ]


def main_job(setting: Setting) -> list[dict[str, Any]]:
    """Run the main job, the bundled model on the math environment."""
    toy = ("--steps=2", "--eval.num_tasks=32", "--rollout.groups_per_batch=2")
    return [_job("math, react, bundled model", (*_MATH, *(toy if setting.toy else ())))]


def real_job(setting: Setting) -> list[dict[str, Any]]:
    """Run some steps of a real model, if its folder is given."""
    if setting.model is None:
        setting.skipped.append("the job of a real model: give its folder with --model FOLDER")
        return []
    flags = ["--config=examples/smollm2.toml", f"--model={setting.model}", "--eval.num_tasks=0"]
    flags += ["--init.method=none", "--init.data="]  # only RL: demonstrations take long
    if setting.toy:
        flags += ["--steps=1", "--rollout.groups_per_batch=1", "--rollout.group_size=2"]
    else:
        flags += ["--steps=4", "--rollout.groups_per_batch=8", "--engine.dtype=bfloat16"]
    return [_job(f"math, react, {setting.model.name}", flags)]


PARTS: Mapping[str, Callable[[Setting], list[dict[str, Any]]]] = {
    "parity": parity,
    "attention": attention,
    "engine": engine,
    "trainer": trainer,
    "loading": loading,
    "idle ranks": idle,
    "publication": publication,
    "main job": main_job,
    "real model": real_job,
}
_MATH = ("--env=math", "--agent=react")


def _job(label: str, flags: Sequence[str]) -> dict[str, Any]:
    run = train(label, flags)
    steps = run.steps
    return {
        "job": label,
        "seconds": round(run.seconds, 1),
        "training_s": round(run.training_s, 1),
        "steps": len(steps),
        "reward_before": run.result["eval_before"],
        "reward_after": run.result["eval_after"],
        "reward_of_last_batch": steps[-1]["reward/mean"],
        "mismatch_mean_abs": steps[-1].get("mismatch/mean_abs"),
    }


def _sampled(
    setting: Setting, folder: Path, dtype: Dtype, *, requests: int, prompt: int, reply: int
) -> tuple[list[list[int]], list[Delta], float]:
    """Return prompts, replies, and the seconds from the first request to the last reply; a round
    before it is not timed."""
    config = EmbeddedEngineConfig(
        device=setting.device,
        dtype=dtype,
        max_model_len=2 * (prompt + reply),
        max_num_seqs=requests,
    )
    loaded = load_model(folder, config)
    draw = random.Random(0)
    vocab = loaded.vocab_size
    prompts = [[draw.randrange(3, vocab) for _ in range(prompt)] for _ in range(requests)]
    sampling = SamplingParams(max_tokens=reply)

    async def one(client: HttpEngine, number: int, tokens: list[int], name: str) -> Delta:
        name = f"{name}-{number}"
        async for delta in client.generate(tokens, sampling, request_id=name, session_id=name):
            return delta
        raise RuntimeError("a reply without an end")

    async def all_of(client: HttpEngine, name: str) -> list[Delta]:
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(one(client, *it, name)) for it in enumerate(prompts)]
        return [job.result() for job in jobs]

    async def play() -> tuple[list[Delta], float]:
        model = EmbeddedEngine(
            loaded, model_dir=folder, config=config, seed=0, weight_version="0.0"
        )
        app = App(model, served_model_name="bench")
        async with serving(app, host="127.0.0.1", port=0) as url, model.running():
            client = HttpEngine(url, timeout_s=120.0)
            try:
                await all_of(client, "warm-up")
                start = time.perf_counter()
                replies = await all_of(client, "timed")
                return replies, time.perf_counter() - start
            finally:
                await client.close()

    replies, seconds = asyncio.run(play())
    return prompts, replies, seconds


def _timer(setting: Setting) -> Timer:
    return Timer(setting.device, repeats=1 if setting.toy else 5)


def _random_pack(lengths: Sequence[int], *, shared: int = 0) -> PackedRows:
    """Return rows of these lengths, packed, whose first `shared` tokens are the same."""
    draw = np.random.default_rng(0)
    rows = [half_sampled(draw, length) for length in lengths]
    begun = [np.concatenate((rows[0].tokens[:shared], it.tokens[shared:])) for it in rows]
    pairs = zip(rows, begun, strict=True)
    return pack_rows([replace(it, tokens=tokens) for it, tokens in pairs], share=shared > 0)


def _row(prompt: Sequence[int], reply: Delta) -> Row:
    """Return the row of one reply at temperature 1, of version 0."""
    tokens = np.array([*prompt, *reply.token_ids], np.int32)
    found = row(len(tokens), len(reply.token_ids))
    found.behavior_logprobs[found.loss_mask] = reply.logprobs
    return replace(found, tokens=tokens)


def main() -> None:
    """Run one part and write its result."""
    parser = ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    setting = Setting(args.scratch, toy=args.toy, model=args.model)
    try:
        rows = PARTS[args.part](setting)
    except RunFailed as error:  # its messages stand above
        raise SystemExit(str(error)) from error
    args.out.write_text(json.dumps({"rows": rows, "skipped": setting.skipped}))


if __name__ == "__main__":
    main()
