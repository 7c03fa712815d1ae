"""The parts of `arl bench gpu` about the trainer: a step and what it spends its time on, the memory
of loading, and two ranks that wait for each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from arl_meters.devices import peak_tflops
from torch.profiler import ProfilerActivity, profile
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentgym_rl.algo import PackedRows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import Row
from agentgym_rl.trainer import Policy, join_world, make_optimizer, set_learning_rate

from .trainer_loops.packing import VOCAB, half_sampled
from .trainer_loops.ranks import minibatch_rows

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]
T = TypeVar("T")
ROWS = 16
LONGEST = 4096
"""The number of rows of a measured step, and the tokens of the longest."""
RANKS = 2


def lengths_of_step(*, toy: bool) -> list[int]:
    """Return the lengths of the rows of a step: log-normal, up to `LONGEST`."""
    count, longest = (4, 60) if toy else (ROWS, LONGEST)
    draw = np.random.default_rng(0).lognormal(np.log(longest / 3), 0.8, count)
    return [longest, *np.clip(draw, longest / 32, longest).astype(int)[1:].tolist()]


def step_row(folder: Path, device: Device, *, toy: bool) -> dict[str, Any]:
    """Measure a step: tokens a second, teraFLOP/s, the share of the peak (MFU), and the share of
    the time that attention, the head, the optimizer and all else take."""
    config = TrainerConfig(head_chunk_tokens=16) if toy else TrainerConfig()
    draw = np.random.default_rng(0)
    rows = [half_sampled(draw, length) for length in lengths_of_step(toy=toy)]
    with policy_of(folder, device, "bfloat16", trainer=config) as policy:
        optimizer = make_optimizer(policy.model, config)
        set_learning_rate(optimizer, 1e-6)
        packs = [packed.to(policy.world.device) for _, packed in policy.micro_batches(rows)]

        def passes() -> None:
            for packed in packs:
                learn(policy, packed)

        seen = [Captured.of(policy, packed) for packed in packs]
        timed = Timer(device, repeats=1 if toy else 3)
        seconds = {"passes": timed(passes), "optimizer": timed(optimizer.step)}
        optimizer.zero_grad(set_to_none=True)
        layers = policy.model.config.get_text_config().num_hidden_layers
        seconds["attention"] = layers * timed(lambda: [it.attend() for it in seen])
        seconds["head"] = timed(lambda: [it.score(policy) for it in seen])
        policy.flops = 0.0
        passes()
        whole, peak = (
            seconds["passes"] + seconds["optimizer"],
            peak_tflops(policy.world.device, None),
        )
        rate = policy.flops / whole / 1e12
        named = {name: seconds[name] / whole for name in ("attention", "head", "optimizer")}
        return {
            "rows": len(rows),
            "longest": LONGEST if not toy else max(map(len, rows)),
            "micro_batches": len(packs),
            "tokens_per_s": round(sum(map(len, rows)) / whole),
            "tflops": rate,
            "peak_tflops": "unknown" if peak is None else peak,
            "mfu": "unknown" if peak is None else rate / peak,
            **{f"share_{name}": share for name, share in named.items()},
            "share_rest": 1 - sum(named.values()),
            "gpu_peak_gb": peak_gb(),
        }


@contextmanager
def policy_of(
    folder: Path, device: Device, dtype: Dtype, *, trainer: TrainerConfig | None = None
) -> Iterator[Policy]:
    """Load a policy with float32 master weights; its memory is freed afterwards."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with join_world(device=device) as world:
        yield Policy.load(folder, world, compute_dtype=dtype, trainer=trainer)


def learn(policy: Policy, packed: PackedRows) -> None:
    """Compute log-probs and the gradient of their mean."""
    policy.logprobs(packed).mean().neg().backward()


def peak_gb() -> float | None:
    """Return the most gigabytes of tensors on the GPU since the last model was loaded."""
    if not torch.cuda.is_available():
        return None
    return round(torch.cuda.max_memory_allocated() / 1e9, 2)


@dataclass(slots=True)
class Captured:
    """The inputs of a layer's attention and of the output layer in a pass over packed rows."""

    packed: PackedRows
    attention: list[Any] = field(default_factory=list[Any])
    """The function of a layer's attention, its module, queries, keys, values, mask and options."""
    hidden: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    @classmethod
    def of(cls, policy: Policy, packed: PackedRows) -> Captured:
        """Capture them in one pass without gradients."""
        found, name = cls(packed), policy.model.config.get_text_config()._attn_implementation
        kernel, head = ALL_ATTENTION_FUNCTIONS[name], policy.model.get_output_embeddings()

        def attends(module: Any, *inputs: Any, **options: Any) -> Any:
            if not found.attention:
                found.attention += [kernel, module, inputs, options]
            return kernel(module, *inputs, **options)

        def scores(module: Any, inputs: tuple[torch.Tensor]) -> None:
            found.hidden.append(inputs[0].detach())

        hook = head.register_forward_pre_hook(scores)
        ALL_ATTENTION_FUNCTIONS[name] = attends
        try:
            with torch.no_grad():
                policy.logprobs(packed)
        finally:
            ALL_ATTENTION_FUNCTIONS[name] = kernel
            hook.remove()
        return found

    def attend(self) -> None:
        """Compute the attention of one layer, and its gradient."""
        kernel, module, (*tensors, mask), options = self.attention
        inputs = [it.detach().requires_grad_() for it in tensors]
        output = kernel(module, *inputs, mask, **options)[0]
        output.backward(torch.ones_like(output))

    def score(self, policy: Policy) -> None:
        """Compute the log-probs of the output layer, and their gradient."""
        layer = policy.model.get_output_embeddings()
        layer.forward.expect(self.packed)
        hidden, weight = self.hidden[0].detach().requires_grad_(), layer.weight
        layer.forward(hidden)[..., 0].sum().backward(inputs=[hidden, weight])
        weight.grad = None


@dataclass(frozen=True, slots=True)
class Timer:
    """A measurement of the median seconds of an action, on a device that works beside the host."""

    device: Device
    repeats: int

    def __call__(self, action: Callable[[], object]) -> float:
        """Return the median, after one time that is not measured."""
        seconds = list[float]()
        for _ in range(1 + self.repeats):
            start = time.perf_counter()
            action()
            if self.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])


def loading_rows(folder: Path, device: Device) -> list[dict[str, Any]]:
    """Measure the most memory that a rank takes while it loads a policy, and what it keeps."""
    rows = list[dict[str, Any]]()
    compute: Dtype = "bfloat16" if device == "cuda" else "float32"
    for master in (torch.float32, torch.bfloat16):
        with join_world(device=device) as world:
            load = partial(Policy.load, folder, world, compute_dtype=compute, master_dtype=master)
            policy, peak = with_peak(load, device)
            kept = sum(it.nbytes for it in policy.model.parameters())
            del policy
        rows.append(
            {
                "master_weights": str(master).removeprefix("torch."),
                "kept_gb": kept / 1e9,
                "peak_gb": peak / 1e9,
                "peak_over_kept": peak / kept,
            }
        )
    return rows


def with_peak(act: Callable[[], T], device: Device) -> tuple[T, int]:
    """Return the result of `act`, and the most bytes of tensors on the device at one time, beyond
    those from before."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = act()
        return result, torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = act()
    events: Any = seen.profiler.kineto_results.events()  # pyright: ignore
    found = sorted((it for it in events if it.name() == "[memory]"), key=lambda it: it.start_ns())
    return result, int(np.cumsum([0, *(it.nbytes() for it in found)]).max())


def idle_row(folder: Path, device: Device, *, toy: bool) -> dict[str, Any]:
    """Measure the share of the time that ranks wait for each other, as a batch is dealt to two of
    them. They compute one after the other, on one device, and nothing is exchanged."""
    groups, members = (2, 2) if toy else (8, 8)
    dealt = minibatch_rows(groups, members, RANKS)
    with policy_of(folder, device, "bfloat16") as policy:
        timed, busy, whole, rounds = Timer(device, repeats=1), 0.0, 0.0, 0
        for parts in dealt:
            for turn in zip_longest(*_plans(policy, [*map(_known, parts)])):
                seconds = [timed(lambda it=it: _once(policy, it)) for it in turn if it is not None]
                busy, whole, rounds = busy + sum(seconds), whole + max(seconds), rounds + 1
    return {
        "batch": f"{groups} x {members}",
        "minibatches": len(dealt),
        "ranks": RANKS,
        "rounds": rounds,
        "idle_share": 1 - busy / (RANKS * whole),
    }


def _plans(policy: Policy, parts: Sequence[Sequence[Row]]) -> list[list[PackedRows]]:
    """Return the micro-batches of each rank in one minibatch, the largest first; a rank with fewer
    makes them smaller, as the trainer does."""
    plans = [[packed for _, packed in policy.micro_batches(rows)] for rows in parts]
    most = max(map(len, plans))
    for number, rows in enumerate(parts):
        if 0 < len(plans[number]) < most:
            plans[number] = [packed for _, packed in policy.micro_batches(rows, least=most)]
        plans[number].sort(key=lambda packed: -sum(packed.lengths))
    return plans


def _once(policy: Policy, packed: PackedRows) -> None:
    learn(policy, packed)
    policy.model.zero_grad(set_to_none=True)


def _known(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with token ids that every model of the benchmark has."""
    return [replace(it, tokens=it.tokens % VOCAB) for it in rows]
