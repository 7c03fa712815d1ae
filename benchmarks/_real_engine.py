"""The engine's parts of `arl bench real`: speed over HTTP compared with `generate`, the agreement
of bfloat16 with float32, and peak memory.

`generate` decodes a static batch until its longest reply ends; the tokens of the others after their
end do not count. Prompts are different, so that nothing can be shared between requests.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentgym_rl.core import weight_files
from agentgym_rl.engines import protocol
from agentgym_rl.weights import read_base, write_version

from ._common import engine_process, generate, model_config, over_http, say
from ._toy import sized

DTYPES = ("float32", "bfloat16")
REQUESTS = tuple(map(int, os.environ.get("ARL_BENCH_REQUESTS", sized("16,64", toy="4")).split(",")))
PROMPT_TOKENS = 64
EQUAL_TOKENS = 64
MIXED_TOKENS = (16, 128)
_ROUND_TIMEOUT_S = 600.0
_GOALS = {"equal": 1.25, "mixed": 1.8}
_MEMORY_GOAL = 3.0


@dataclass
class Part:
    """The result of a part."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    goals: dict[str, str] = field(default_factory=dict)
    """The goals in words, by name."""
    met: bool = True

    def compare(self, name: str, ratio: float, *, at_least: float = 0, at_most: float = 0) -> None:
        """Add a ratio with its goal."""
        self.ratios[name] = round(ratio, 2)
        self.goals[name] = f"≥ {at_least:g}" if at_least else f"≤ {at_most:g}"
        self.met = self.met and (ratio >= at_least if at_least else ratio <= at_most)


@dataclass(frozen=True)
class Case:
    """Requests that arrive at once: `lengths[i]` tokens are sampled after `prompts[i]`."""

    name: str
    prompts: list[list[int]]
    lengths: list[int]

    @classmethod
    def of(cls, kind: str, count: int, vocab_size: int) -> Case:
        draw = random.Random(count)
        low, high = MIXED_TOKENS if kind == "mixed" else (EQUAL_TOKENS, EQUAL_TOKENS)
        return cls(
            f"{count} requests, {kind} lengths",
            [[draw.randrange(3, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)],
            [round(low + (high - low) * index / max(1, count - 1)) for index in range(count)],
        )


@dataclass(frozen=True)
class Spent:
    """The costs of a round."""

    wall_s: float
    cpu_s: float


def speed(kind: str, folder: Path, rounds: int) -> Part:
    """Measure both dtypes at 16 and 64 requests, with `equal` or `mixed` lengths."""
    torch.set_num_threads(1)
    part = Part()
    with ExitStack() as stack:
        systems: dict[str, Callable[[Case], Spent]] = {}
        for dtype in DTYPES:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
            systems[f"generate {dtype}"] = _generate(model)
            served = stack.enter_context(engine_process(_config(folder, dtype)))
            systems[f"agentgym-rl {dtype}"] = _served(*served)
        vocab_size = model.config.vocab_size
        for count in REQUESTS:
            case = Case.of(kind, count, vocab_size)
            _judge(part, case, kind, _rounds(systems, case, rounds))
    return part


def _rounds(
    systems: dict[str, Callable[[Case], Spent]], case: Case, rounds: int
) -> dict[str, list[Spent]]:
    """Return the costs of each system in each round; the first round warms up and does not
    count."""
    spent: dict[str, list[Spent]] = {name: [] for name in systems}
    warm = Case(case.name, case.prompts[:4], [4] * 4)
    for play in systems.values():
        play(warm)
    for number in range(rounds):
        for name, play in systems.items():
            spent[name].append(play(case))
        took = (f"{name} {of[-1].wall_s:.1f} s ({of[-1].cpu_s:.1f})" for name, of in spent.items())
        say(f"  {case.name}, round {number + 1}, seconds (of CPU): {', '.join(took)}")
    return spent


def _judge(part: Part, case: Case, kind: str, spent: dict[str, list[Spent]]) -> None:
    tokens = sum(case.lengths)
    for name, found in spent.items():
        part.rows.append(
            {
                "system": name,
                "case": case.name,
                "tokens_per_s": round(tokens / statistics.median(it.wall_s for it in found), 1),
                "tokens_per_cpu_s": round(tokens / statistics.median(it.cpu_s for it in found), 1),
            }
        )
    for dtype in DTYPES:
        ours, theirs = spent[f"agentgym-rl {dtype}"], spent[f"generate {dtype}"]
        pairs = list(zip(theirs, ours, strict=True))
        wall = statistics.median(their.wall_s / our.wall_s for their, our in pairs)
        cpu = statistics.median(their.cpu_s / our.cpu_s for their, our in pairs)
        part.ratios[f"{case.name}, {dtype} / generate"] = round(wall, 2)
        part.ratios[f"{case.name}, {dtype} / generate, CPU"] = round(cpu, 2)
        if dtype == "float32":
            part.goals[case.name] = f">= {_GOALS[kind]} x generate"
            part.met = part.met and wall >= _GOALS[kind]
    low, high = (spent[f"agentgym-rl {dtype}"] for dtype in reversed(DTYPES))
    gain = statistics.median(b.cpu_s / a.cpu_s for a, b in zip(low, high, strict=True))
    part.ratios[f"{case.name}, bfloat16 / float32, CPU"] = round(gain, 2)


def _generate(model: Any) -> Callable[[Case], Spent]:
    def play(case: Case) -> Spent:
        wall, cpu = time.perf_counter(), time.process_time()
        generate(model, case.prompts, max(case.lengths))
        return Spent(time.perf_counter() - wall, time.process_time() - cpu)

    return play


def _served(url: str, pid: int) -> Callable[[Case], Spent]:
    """Measure a round of the engine; CPU seconds are those of its process and of this one, its
    client."""
    stat = Path(f"/proc/{pid}/stat")

    def cpu_s() -> float:
        user, system = stat.read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") + time.process_time()

    def play(case: Case) -> Spent:
        wall, cpu = time.perf_counter(), cpu_s()
        _sampled(url, case)
        return Spent(time.perf_counter() - wall, cpu_s() - cpu)

    return play


def _sampled(url: str, case: Case) -> list[protocol.Choice]:
    return over_http(url, case.prompts, case.lengths, timeout_s=_ROUND_TIMEOUT_S)


def agreement(folder: Path, rounds: int) -> Part:
    """Compare the log-probs that each dtype reports with a float32 forward of transformers."""
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    part = Part()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompts = [
        tokenizer.encode(f"Question: Ada has {number} shells and finds {3 * number + 1} more, then "
                         f"gives {number // 2} away. How many does she have?\nAnswer: She has")
        for number in range(11, 11 + 8 * 3, 3)
    ]  # fmt: skip
    case = Case("agreement", prompts, [48] * len(prompts))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for dtype in DTYPES:
        with engine_process(_config(folder, dtype)) as (url, _):
            choices = _sampled(url, case)
        gaps = torch.cat([_gaps(model, *pair) for pair in zip(prompts, choices, strict=True)])
        part.rows.append(
            {
                "system": f"agentgym-rl {dtype}",
                "tokens": len(gaps),
                "mean_abs": round(float(gaps.abs().mean()), 7),
                "max_abs": round(float(gaps.abs().max()), 6),
                "mean_exp": round(float(gaps.exp().mean()), 6),
                "share_beyond_0.1": round(float((gaps.abs() > 0.1).double().mean()), 5),
            }
        )
    return part


@torch.inference_mode()
def _gaps(model: Any, prompt: list[int], choice: protocol.Choice) -> Tensor:
    """Return the trainer's log-prob minus the engine's for each sampled token."""
    assert choice.token_ids is not None
    assert choice.logprobs is not None
    logits = model(torch.tensor([prompt + choice.token_ids])).logits[0, len(prompt) - 1 : -1]
    ours = torch.log_softmax(logits, -1).gather(1, torch.tensor(choice.token_ids)[:, None])[:, 0]
    return ours - torch.tensor([one.logprob for one in choice.logprobs.content])


def memory(folder: Path, rounds: int) -> Part:
    """Measure the peak memory of an engine that loads the model and takes two new versions."""
    part = Part()
    size = sum(file.stat().st_size for file in weight_files(folder))
    tensors = {name: tensor.float() for name, tensor in read_base(folder).items()}
    float32 = sum(tensor.nbytes for tensor in tensors.values())
    for dtype in DTYPES:
        found = peaks(folder, dtype, tensors)
        times = {f"{name}_x": round(found[name] / float32, 2) for name in found}
        part.rows.append({"system": f"agentgym-rl {dtype}", "file_mb": size // 10**6} | times)
        if dtype == "float32":
            worst = max(found["load"], found["update"])
            part.ratios["peak memory of the engine / float32 weights"] = round(worst / float32, 2)
            part.met = part.met and worst <= _MEMORY_GOAL * float32
    part.goals["peak memory of the engine"] = f"<= {_MEMORY_GOAL:g} x the float32 weights"
    return part


def peaks(folder: Path, dtype: str, tensors: dict[str, Tensor]) -> dict[str, int]:
    """Return the bytes that an engine's process adds, KV cache not counted, to what it has after
    its imports: at most while it loads, then; at most in two updates to `tensors`, then."""
    # /dev/shm, where the shm transport keeps versions: their pages count when they are mapped.
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=shared) as scratch:
        for version in (1, 2):
            write_version(Path(scratch), version, tensors)
        command = [sys.executable, "-m", "benchmarks._real_memory", str(folder), dtype, scratch]
        root = Path(__file__).parents[1]
        done = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_ROUND_TIMEOUT_S,
        )
    if done.returncode:
        raise RuntimeError(f"the engine's process failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def _config(folder: Path, dtype: str) -> Any:
    keys = {"device": "cpu", "dtype": dtype, "num_threads": 1, "request_timeout_s": 600.0}
    return model_config(folder, [(f"engine.{key}", value) for key, value in keys.items()])
