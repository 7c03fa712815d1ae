"""One model, tried as runs try it: sampled from in two turns with a training step and a publication
between them, audited, exported and loaded again, and each log-prob compared with those of plain
transformers. Used by `architectures.py` and by the tests."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from arl_audit.logprobs import audit
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import LoadedModel, load_model
from arl_embedded.section import EmbeddedEngineConfig
from arl_lora.keys import LoraConfig
from arl_trial.model_process import refusal
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import micro_batches
from agentgym_rl.config import Config, dump_toml
from agentgym_rl.core import (
    ConfigError,
    Delta,
    Group,
    Outcome,
    Row,
    SamplingParams,
    StepReport,
    Task,
    Trajectory,
)
from agentgym_rl.engines import HttpEngine
from agentgym_rl.runtime import serving
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.trainer import Policy, World, export_model, join_world
from agentgym_rl.weights import write_version

TOLERANCE = 1e-5
"""The largest |difference| of a log-prob, in nats."""
_LARGER = {"adapter": 1e-4, "gradient": 1e-4}
"""The same for an adapter, whose merging rounds the weights; and the largest norm of the difference
of two gradients, in units of the norm of one."""
_PROMPT_LENGTHS = (3, 1, 40, 17, 60, 9)
_BUDGET = 128
_ENGINE = EmbeddedEngineConfig(device="cpu", max_model_len=128, max_num_seqs=4)
_TURNS = ((12, 0), (8, 5))
"""The number of tokens that each turn samples, and of those between it and the turn before."""


@dataclass(frozen=True)
class Found:
    """The result of the trial of a model."""

    engine: str = ""
    """The path by which the embedded engine decodes."""
    rows: str = ""
    """The way in which the trainer computes rows."""
    lora: str = ""
    """Whether an adapter trains, or the reason why not."""
    names: str = ""
    """The tensors of an export."""
    refused: str = ""
    """The reason of a refusal, with the way out."""
    gaps: Mapping[str, float] = field(default_factory=dict, compare=False)
    """The differences from plain transformers, by what differs."""

    @property
    def wrong(self) -> dict[str, float]:
        """Return the differences that are larger than allowed."""
        allowed = dict.fromkeys(self.gaps, TOLERANCE) | _LARGER
        return {name: gap for name, gap in self.gaps.items() if not gap <= allowed[name]}


def tried(folder: Path) -> Found:
    """Train, sample, publish, audit, export and reload the model in `folder`, unless a run would
    refuse it before it starts anything."""
    with join_world() as world:
        if why := refusal(Config(), folder, world):
            return Found(refused=why.replace(str(folder), "FOLDER"))
        try:
            engine = load_model(folder, _ENGINE)
        except ConfigError as error:
            return Found(refused=str(error))
        how, lora = _lora_of(folder, world)
        policy = Policy.load(folder, world)
        own = policy._own_attention
        life = asyncio.run(_Life(folder, engine, policy).lived())
        gaps = dict(life.gaps)
        if lora is not None:
            gaps["adapter"] = _adapter_gap(folder, world, lora, life.rows)
    gaps["audit"] = _audited(folder, life.rows)
    return Found(
        engine=engine.decoder.name,
        rows=("packed" if policy.packs else "one by one") + ("" if own == "sdpa" else f", {own}"),
        lora=how,
        names="renamed back" if policy.names and policy.names.converts else "unchanged",
        gaps=gaps,
    )


def _lora_of(folder: Path, world: World) -> tuple[str, LoraConfig | None]:
    """Return how an adapter trains ("yes", with the setting that a refusal names, or "no"), and its
    settings."""

    def why_not(lora: LoraConfig) -> str:
        return refusal(Config(lora=lora), folder, world)

    lora = LoraConfig(rank=2)
    if not (why := why_not(lora)):
        return ("yes, but no experts" if _leaves_experts(folder, world, lora) else "yes"), lora
    if targets := re.search(r"--lora.target_modules=([\w.,]+\w)", why):
        lora = LoraConfig(rank=2, target_modules=tuple(targets[1].split(",")))
        how = f"only {', '.join(lora.target_modules)}"
    elif excluded := re.search(r"Module '(\w+)' is incompatible", why):
        lora = LoraConfig(rank=2, exclude_modules=(excluded[1],))
        how = f"without {excluded[1]}"
    else:
        return "no", None
    return ("no", None) if why_not(lora) else (how, lora)


def _leaves_experts(folder: Path, world: World, lora: LoraConfig) -> bool:
    """Return whether a model has experts that get no adapter."""
    policy = Policy.load(folder, world, adapter=lora)
    experts = [it for it in policy.model.modules() if type(it).__name__.endswith("Experts")]
    return any(not any("lora_" in name for name, _ in it.named_parameters()) for it in experts)


def _adapter_gap(folder: Path, world: World, lora: LoraConfig, rows: Sequence[Row]) -> float:
    """Return how a model with a random adapter differs from the same model with it merged."""
    policy = Policy.load(folder, world, adapter=lora)
    _logprobs(policy, rows).sum().backward()
    with torch.no_grad():
        trained = {n: p for n, p in policy.model.named_parameters() if p.grad is not None}
        for name, parameter in trained.items():  # Mamba does not call its dt_proj, nor trains it
            if ".lora_B" in name:
                parameter.normal_(std=0.02)
        found = _logprobs(policy, rows)
    merged = export_model(folder / "merged", policy.full_state(), model_dir=folder)
    with torch.no_grad():
        return _gap(found, _plain_logprobs(_plain(merged), rows))


class _Lived(NamedTuple):
    rows: Sequence[Row]
    gaps: dict[str, float]


class _Life:
    """The life of one model: version 0, a step, version 1, and their files."""

    def __init__(self, folder: Path, engine: LoadedModel, policy: Policy):
        self._folder, self._engine, self._policy = folder, engine, policy
        self._run = folder / "run"
        (self._run / "weights").mkdir(parents=True)
        draw = random.Random(3)
        vocab = min(engine.vocab_size, 600)
        self._draw: Callable[[int], list[int]] = lambda n: [
            draw.randrange(3, vocab) for _ in range(n)
        ]

    async def lived(self) -> _Lived:
        """Return the sampled rows, and their differences from plain transformers."""
        plain = _plain(self._folder)
        gaps: dict[str, float] = {}
        prompts = [self._draw(length) for length in _PROMPT_LENGTHS]
        async with self._served() as client:
            first = await _play(client, prompts, _TURNS[0][0])
            rows = [_row([turn]) for turn in zip(prompts, first, [0] * len(first), strict=True)]
            with torch.no_grad():
                gaps["engine"] = _gap(_recorded(rows), _plain_logprobs(plain, rows))
            gaps |= self._step(plain, rows)
            state = self._policy.full_state()
            path = write_version(self._run / "weights", 1, state)
            await client.update_weights(str(path), version=1)
            between = [
                [*p, *d.token_ids, *self._draw(_TURNS[1][1])]
                for p, d in zip(prompts, first, strict=True)
            ]
            second = await _play(client, between, _TURNS[1][0])
        both = [
            _row([(p, one, 0), (b[len(p) + len(one.token_ids) :], two, 1)])
            for p, one, b, two in zip(prompts, first, between, second, strict=True)
        ]
        path.rename(self._run / "weights" / "v-1")
        out = export_model(
            self._folder / "out", state, model_dir=self._folder, names=self._policy.names
        )
        again = _plain(out)
        later = [_row([(b, two, 1)]) for b, two in zip(between, second, strict=True)]
        with torch.no_grad():
            expected = _plain_logprobs(again, later)
            gaps["engine, updated"] = _gap(_recorded(later), expected)
            gaps["trainer, updated"] = _gap(_logprobs(self._policy, later), expected)
        return _Lived(both, gaps)

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[HttpEngine]:
        engine = EmbeddedEngine(
            self._engine, model_dir=self._folder, config=_ENGINE, seed=0, weight_version="0.0"
        )
        app = App(engine, served_model_name="tried")
        async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
            client = HttpEngine(url, timeout_s=60.0)
            try:
                yield client
            finally:
                await client.close()

    def _step(self, plain: Any, rows: Sequence[Row]) -> dict[str, float]:
        """Take a step that makes the sampled tokens likelier; return how log-probs and gradients
        differ from those of the `plain` model."""
        policy = self._policy
        write_version(self._run / "weights", 0, policy.full_state()).rename(
            self._run / "weights" / "v-0"
        )
        found = _logprobs(policy, rows)
        found.sum().backward()
        expected = _plain_logprobs(plain, rows)
        expected.sum().backward()
        theirs = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
        mine = {n: _whole(p.grad) for n, p in policy.model.named_parameters() if p.grad is not None}
        apart = sum(float((mine[n] - theirs[n]).double().square().sum()) for n in theirs)
        size = sum(float(g.double().square().sum()) for g in theirs.values())
        for parameter in policy.model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad * (0.05 / max(size, 1e-9) ** 0.5))
                parameter.grad = None
        return {
            "trainer": _gap(found.detach(), expected.detach()),
            "gradient": (apart / size) ** 0.5 if mine.keys() == theirs.keys() else float("inf"),
        }


def _logprobs(policy: Policy, rows: Sequence[Row]) -> Tensor:
    """Return the policy's log-probs of the rows' sampled tokens, packed as in training."""
    parts: dict[int, Tensor] = {}
    for members, packed in micro_batches(rows, _BUDGET, share=False, packs=policy.packs):
        found = policy.logprobs(packed)
        counts = [rows[i].num_trained for i in members]
        parts |= dict(zip(members, found.split(counts), strict=True))
    return torch.cat([parts[index] for index in range(len(rows))])


def _plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


async def _play(client: HttpEngine, prompts: Sequence[list[int]], count: int) -> list[Delta]:
    """Sample after all prompts at once, each joining the batch a little after the one before."""

    async def one(number: int, prompt: list[int]) -> Delta:
        await asyncio.sleep(number * 0.002)
        sampling = SamplingParams(max_tokens=count, seed=number)
        name = f"r{number}-{len(prompt)}"
        async for delta in client.generate(prompt, sampling, request_id=name, session_id=name):
            return delta
        raise AssertionError("a reply without an end")

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(one(n, prompt)) for n, prompt in enumerate(prompts)]
    return [job.result() for job in jobs]


def _row(turns: Sequence[tuple[list[int], Delta, int]]) -> Row:
    """Return a row of turns: the tokens before the reply, the reply, and its version."""
    parts: list[tuple[int, bool, float, int, float, int]] = []
    for number, (context, reply, version) in enumerate(turns):
        parts += [(token, False, 0.0, -1, 0.0, -1) for token in context]
        sampled = zip(reply.token_ids, reply.logprobs, strict=True)
        parts += [(token, True, logprob, version, 1.0, number) for token, logprob in sampled]
    tokens, mask, logprobs, versions, heat, turn_ids = zip(*parts, strict=True)
    return Row(
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.bool_),
        behavior_logprobs=np.array(logprobs, np.float32),
        policy_versions=np.array(versions, np.int32),
        admitted_versions=np.array(versions, np.int32),
        temperatures=np.array(heat, np.float32),
        turn_ids=np.array(turn_ids, np.int32),
        times_s=np.zeros(len(tokens)),
    )


def _recorded(rows: Sequence[Row]) -> Tensor:
    return torch.cat([torch.from_numpy(row.behavior_logprobs[row.loss_mask]) for row in rows])


def _plain_logprobs(model: Any, rows: Sequence[Row]) -> Tensor:
    """Return the log-probs of the rows' sampled tokens by plain forwards of one row each."""
    found: list[Tensor] = []
    for row in rows:
        tokens = torch.from_numpy(row.tokens.astype(np.int64))
        logprobs = torch.log_softmax(model(tokens[None], use_cache=False).logits[0].float(), -1)
        chosen = logprobs[:-1].gather(1, tokens[1:, None])[:, 0]
        found.append(chosen[torch.from_numpy(row.loss_mask[1:])])
    return torch.cat(found)


def _gap(found: Tensor, expected: Tensor) -> float:
    gap = float((found - expected).abs().max())
    return gap if gap == gap else float("inf")


def _whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _audited(folder: Path, rows: Sequence[Row]) -> float:
    """Return the largest difference that `arl audit` finds in a run with these rows."""
    run = folder / "run"
    config = Config.model_validate({"steps": 1, "model": {"path": str(folder)}})
    (run / "config.toml").write_text(dump_toml(config))
    with contextlib.closing(EpisodeLog(run / "episodes.db")) as log:
        asyncio.run(_record(log, rows))
    report = audit(run)
    return report["max"] if report["passed"] and report["coverage"] == 1.0 else float("inf")


async def _record(log: EpisodeLog, rows: Sequence[Row]) -> None:
    for index, row in enumerate(rows):
        name = f"g{index}"
        episode = Trajectory(f"{name}-0", name, f"t{index}", Outcome.COMPLETED, 1.0, [row])
        group = Group(name, f"t{index}", [episode])
        await log.add_group(Task(f"t{index}", 0), index, group)
        await log.lease([group], step=1)
    await log.publish(StepReport(0, 1, {}), {})
