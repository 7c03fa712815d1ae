"""The rates of a model on this machine's CPU, measured in about half a minute, without a run.

The embedded engine's decoder and the trainer are loaded one after the other, and do little work of
several sizes. The result is kept (`kept_file`), and used again for the same model and settings.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from arl_embedded.decoder import Decoder, Segment
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl import __version__
from agentgym_rl.config import TrainerConfig, dump_toml
from agentgym_rl.core import NOT_SAMPLED, BatchRow, BatchShard, Row, tensor_heads
from agentgym_rl.runtime import replace_text
from agentgym_rl.storage import WeightsFolder
from agentgym_rl.trainer import Phases, Stepper, World, join_world
from agentgym_rl.weights import write_version

from .decode_steps import non_negative
from .rates import EngineRates, Rates, RolloutRates, TrainerRates, WeightRates, load_rates

_POINTS = ((1, 32), (4, 32), (16, 32), (4, 256))
"""The requests and tokens of context of the measured decode steps."""
_ENGINE_S, _POINT_S = 14.0, 2.5
"""The seconds after which no further point is measured, and of the steps of one point."""
_LEAST_STEPS, _MOST_STEPS = 3, 50
_TRAINER_S = 10.0
"""The time that the larger measured pass of the trainer should take at most."""
_ROW, _FEWEST_ROWS, _MOST_ROWS = 64, 4, 16
_TURN_S = 3e-3
"""The processor time of a turn, which no probe of the model measures (see calibration.py)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The request for a measurement."""

    folder: Path
    engine: EmbeddedEngineConfig
    trainer: TrainerConfig
    make_stepper: Callable[[World], Stepper]
    say: Callable[[str], None]

    def kept_file(self) -> Path:
        """Return the file in which the result is kept: one for each model and setting."""
        heads = sorted((n, h.dtype, h.shape) for n, h in tensor_heads(self.folder).items())
        engine = self.engine.model_dump(include={"dtype", "num_threads", "fused", "max_num_seqs"})
        trainer = self.trainer.model_dump(
            include={"num_threads", "activation_checkpointing", "compile", "attention"}
        )
        about = (__version__, torch.__version__, _processor(), heads, engine, trainer)
        text = repr(about) + (self.folder / "config.json").read_text(encoding="utf-8")
        name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return Path(cache) / "agentgym_rl" / "probes" / f"{name}.toml"


def probed(probe: Probe) -> Rates:
    """Return the rates that were measured before, or measure and keep them.

    Raises:
        ConfigError: the model cannot be loaded, or the kept file is damaged.
    """
    file = probe.kept_file()
    if file.is_file():
        probe.say(f"speeds measured before, from {file}: remove it to measure again")
        return load_rates(file)
    probe.say("measuring the model on this machine, for about half a minute")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(probe.engine.num_threads)
        engine = _engine_rates(probe)
        torch.set_num_threads(probe.trainer.num_threads)
        trainer, weights = _trainer_rates(probe)
    finally:
        torch.set_num_threads(threads)
    rates = Rates(
        cores=len(os.sched_getaffinity(0)),
        engine=engine,
        trainer=trainer,
        weights=weights,
        rollout=RolloutRates(turn_s=_TURN_S),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, dump_toml(rates))
    return rates


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith("model name")), os.uname().machine)


# ------------------------------------------------------------------ the engine
def _engine_rates(probe: Probe) -> EngineRates:
    model = load_model(probe.folder, probe.engine)
    steps: list[tuple[int, int, float]] = []
    prefills: list[tuple[int, float]] = []
    began = time.monotonic()
    with torch.inference_mode():
        _measure(model.decoder, model.vocab_size, 1, 8)  # one-time costs
        for requests, context in _POINTS:
            room = context + _MOST_STEPS < model.max_model_len
            if not room or requests > probe.engine.decoded_together:
                continue
            if steps and time.monotonic() - began > _ENGINE_S:
                break
            prefill_s, step_s = _measure(model.decoder, model.vocab_size, requests, context)
            steps.append((requests, context, step_s))
            prefills.append((requests * context, prefill_s))
            probe.say(
                f"engine: {requests / step_s:,.0f} tokens/s at {requests} requests of {context} "
                f"tokens; {requests * context / prefill_s:,.0f} tokens/s of prompts"
            )
    step_s, request_s, token_s = _fitted(
        [(1.0, n, n * context) for n, context, _ in steps], [s for *_, s in steps]
    )
    prefill_s, read_s = _fitted([(1.0, n) for n, _ in prefills], [s for _, s in prefills])
    return EngineRates(
        step_s=step_s,
        step_s_per_request=request_s,
        step_s_per_context_token=token_s,
        prefill_s=prefill_s,
        prefill_s_per_token=read_s,
    )


def _measure(decoder: Decoder, vocab: int, requests: int, context: int) -> tuple[float, float]:
    """Return the seconds of a prefill, and of a decode step with the sampling of its tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(vocab, (requests, context), generator=generator).tolist()
    begun = time.monotonic()
    decoder.prefill(0, rows)
    decoding = time.monotonic()
    tokens = torch.randint(vocab, (requests,), generator=generator).to(decoder.device)
    took: list[float] = []
    for at in range(context, context + _MOST_STEPS):
        before = time.monotonic()
        positions = torch.full((requests,), at, device=decoder.device)
        logits = decoder.decode(tokens, positions, [Segment(0, requests, at + 1)])
        tokens = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        took.append(time.monotonic() - before)
        if len(took) >= _LEAST_STEPS and before - decoding > _POINT_S:
            break
    decoder.free_cache()
    return decoding - begun, float(np.median(took))


def _fitted(terms: list[tuple[float, ...]], seconds: list[float]) -> list[float]:
    """Return the factors of the terms, none negative, by least squares of relative errors."""
    shares = np.array(terms, float) / np.array(seconds, float)[:, None]
    return non_negative(shares, np.ones(len(seconds))).tolist()


# ------------------------------------------------------------------ the trainer
def _trainer_rates(probe: Probe) -> tuple[TrainerRates, WeightRates]:
    with join_world(device="cpu") as world:
        stepper = probe.make_stepper(world)
        first = _pass(stepper, 0, _FEWEST_ROWS)
        seconds = first["time/proximal"] + first["time/forward_backward"]
        num_rows = int(_FEWEST_ROWS * _TRAINER_S / max(seconds, 1e-3))
        num_rows = min(max(num_rows, _FEWEST_ROWS), _MOST_ROWS) // 4 * 4
        second = _pass(stepper, 1, num_rows)
        tokens = num_rows * _ROW
        train_s = second["time/forward_backward"] / tokens
        forward_s = second["time/proximal"] / (tokens / 2)  # of the second minibatch
        probe.say(
            f"trainer: {1 / train_s:,.0f} tokens/s forward and backward, "
            f"{1 / forward_s:,.0f} forward"
        )
        state = stepper.policy.trained_state()
        size = sum(tensor.nbytes for tensor in state.values())
        with WeightsFolder(f"probe-{secrets.token_hex(4)}", need_bytes=size) as folder:
            begun = time.monotonic()
            write_version(folder, 0, state)
            written_s = time.monotonic() - begun
        begun = time.monotonic()
        for tensor in state.values():
            tensor.clone()
        copied_s = time.monotonic() - begun
    probe.say(f"weights: {written_s:.2g} s to write a version, {copied_s:.2g} s to copy it")
    return TrainerRates(
        forward_s_per_token=forward_s,
        train_s_per_token=train_s,
        optimizer_s=second["time/optimizer"] / 2,
    ), WeightRates(stage_s=2 * written_s, pause_s=copied_s)  # written, then read by the engine


def _pass(stepper: Stepper, step: int, num_rows: int) -> dict[str, float]:
    """Train a batch of random rows in two minibatches; return the seconds of its phases."""
    phases = Phases()
    shard = _shard(step, num_rows, stepper.policy.vocab_size)
    stepper.train_shard(replace(shard, parts=dict.fromkeys(stepper.parts, shard.rewards)), phases)
    return phases.seconds()


def _shard(step: int, num_rows: int, vocab: int) -> BatchShard:
    """Return groups of two episodes of one row each, whose rewards differ."""
    rows = [BatchRow(row, index) for index, row in enumerate(_rows(num_rows, vocab))]
    return BatchShard(
        step=step,
        rewards=[float(index % 2) for index in range(num_rows)],
        group_ids=[f"g{index // 2}" for index in range(num_rows)],
        num_trained_tokens=num_rows * _ROW // 2,
        num_episodes=num_rows,
        lengths=[_ROW // 2] * num_rows,
        truncated=[False] * num_rows,
        # The first one takes its proximal log-probs from the pass with gradients.
        minibatches=[rows[: num_rows // 2], rows[num_rows // 2 :]],
    )


def _rows(num_rows: int, vocab: int) -> Iterator[Row]:
    random = np.random.default_rng(0)
    sampled = np.arange(_ROW) >= _ROW // 2
    for _ in range(num_rows):
        yield Row(
            tokens=random.integers(0, vocab, _ROW).astype(np.int32),
            loss_mask=sampled,
            behavior_logprobs=np.where(sampled, -np.log(vocab), 0).astype(np.float32),
            policy_versions=np.where(sampled, 0, NOT_SAMPLED).astype(np.int32),
            admitted_versions=np.where(sampled, 0, NOT_SAMPLED).astype(np.int32),
            temperatures=sampled.astype(np.float32),
            turn_ids=np.where(sampled, 0, -1).astype(np.int32),
            times_s=np.zeros(_ROW),
        )
