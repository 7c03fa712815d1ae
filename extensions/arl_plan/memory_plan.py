"""The plan of memory, `arl plan --memory`: what each rank, engine and host of a run takes, whether
it fits, and the keys with which it would."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from agentgym_rl.config import Config, ServerEngineConfig
from agentgym_rl.core import adapter_of
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.models import kv_bytes_per_token, resolve_model, with_model_defaults
from agentgym_rl.trainer import KEPT_BYTES, WHOLE_GRADIENT, default_chunk

from .anatomy import anatomy_of
from .command import Models
from .memory import (
    EngineMemory,
    Passes,
    RankMemory,
    engine_memory,
    host_bytes,
    rank_memory,
    remedies,
    usable,
)
from .rates import gpu_of
from .trainer import HALF, ModelSize

_PER_HOST = 8
"""The GPUs of a host."""
_LENGTHS = (1024, 4096, 16_384, 32_768)
_MOST_RANKS = 1024

Make = Callable[[Mapping[str, object]], Config]
"""A function that returns the configuration with some keys changed."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a run."""

    rank: RankMemory
    by_length: Mapping[int, float]
    """The peak of a rank by the longest row of a batch."""
    ranks: int
    engine: EngineMemory
    engines: int
    workers: int
    """The GPUs of each engine."""
    host: float
    """The bytes of the fullest host."""
    gpu: str
    room: float
    """The bytes of a GPU that a rank can fill."""
    longest: int
    """The tokens of the longest row."""
    remedy: Mapping[str, object] = field(default_factory=dict[str, object])
    """The keys with which the ranks fit; empty: they do, or nothing helps."""

    @property
    def fits(self) -> bool:
        return self.rank.peak <= self.room and self.engine.cached_tokens >= self.longest

    def json(self) -> dict[str, Any]:
        found = {"rank": {**asdict(self.rank), "step": self.rank.step, "peak": self.rank.peak}}
        others = {name: getattr(self, name) for name in ("ranks", "engines", "workers", "host")}
        more = {"gpu": self.gpu, "usable": self.room, "fits": self.fits}
        by_length = {str(length): peak for length, peak in self.by_length.items()}
        return {
            **found,
            **others,
            **more,
            "by_row_length": by_length,
            "engine": asdict(self.engine),
            "remedy": dict(self.remedy),
        }

    def text(self) -> str:
        names = {
            "parameters": "parameters",
            "optimizer": "state of the optimizer",
            "others": "reference, teachers, copies",
            "gradients": "gradients",
            "gathered": "gathered for a pass",
            "activations": "activations",
            "head": "log-probs, or one block's",
            "step": "the peak of a step",
            "loading": "the peak of loading",
            "publishing": "the peak of a publication",
            "host": "on the host",
        }
        lines = [f"A trainer rank, of {self.ranks} ({self.gpu}, {_gb(self.room)} to use):"]
        lines += [
            f"  {text:<30}{_gb(size)}"
            for name, text in names.items()
            if (size := getattr(self.rank, name))
        ]
        peaks = ", ".join(f"{length:,}: {_gb(size)}" for length, size in self.by_length.items())
        lines.append(f"  by the longest row            {peaks}")
        cached = f"{_gb(max(0, self.engine.cache))}, {self.engine.cached_tokens:,} tokens an engine"
        lines += [
            f"A worker of an engine, of {self.engines} x {self.workers}:",
            f"  {'weights':<30}{_gb(self.engine.weights)}",
            f"  {'passes':<30}{_gb(self.engine.passes)}",
            f"  {'keys and values':<30}{cached}",
            f"  {'a version, staged (host)':<30}{_gb(self.engine.staging)}",
            f"A host of {_PER_HOST} GPUs: {_gb(self.host)} of memory",
        ]
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """Return whether the run fits, and what would help."""
        if self.fits:
            return "It fits."
        why: list[str] = []
        if self.rank.peak > self.room:
            keys = ", ".join(f"{k}={_value(v)}" for k, v in self.remedy.items())
            help_ = f"; it would with {keys}" if keys else "; no key of a rank is enough"
            why.append(f"a rank needs {_gb(self.rank.peak)} of {_gb(self.room)}{help_}")
        if self.engine.cached_tokens < self.longest:
            why.append(
                f"an engine has room for {self.engine.cached_tokens:,} tokens, and a row has up to "
                f"{self.longest:,}: raise engine.tensor_parallel_size"
            )
        return f"It does not fit: {'. And '.join(why)}."


def memory_plan(make: Make, folder: Path, *, gpu: str, gpus: int | None = None) -> MemoryPlan:
    """Return the memory of the run that `make` configures, of the model in `folder`, on GPUs of a
    kind; `gpus`: their number, which a remedy does not exceed.

    Raises:
        ConfigError: the GPU or the model's architecture is not known.
    """
    config = fitted(make({}), folder)
    plan = _planned(config, folder, gpu)
    if plan.rank.peak <= plan.room:
        return plan
    engines = plan.engines * plan.workers
    ranks = max(plan.ranks, (gpus or 0) - engines)
    steps = remedies(config.trainer, longest=plan.longest, ranks=ranks)
    more = config.trainer.num_ranks
    while more < _MOST_RANKS:
        more *= 2
        steps.append({"trainer.num_ranks": more, "lora.rank": 0})
    keys: dict[str, object] = {}
    for step in steps:
        keys = {**keys, **step}
        if keys.get("lora.rank") == 0:  # whole weights on more GPUs, without what slows them
            keys.pop("trainer.cpu_offload", None)
        changed = {k: v for k, v in keys.items() if v != attrgetter(k)(config)}
        found = _planned(fitted(_with(make, changed, config), folder), folder, gpu)
        if found.rank.peak <= found.room:
            return replace(plan, remedy=changed)
    return plan


def _with(make: Make, keys: Mapping[str, object], config: Config) -> Config:
    """Return the configuration with other keys; a number of ranks also in an allocation."""
    allocation = config.cluster.model_dump().get("allocation")
    ranks = keys.get("trainer.num_ranks")
    if not allocation or ranks is None:
        return make(keys)
    others = {key: value for key, value in keys.items() if key != "trainer.num_ranks"}
    rows = max(1, int(cast("int", ranks)) // config.trainer.ranks_per_row)
    text = re.sub(r"(fsdp[^+|]*:\s*d)\d+", rf"\g<1>{rows}", allocation)
    return make({**others, "cluster.allocation": text})


def fitted(config: Config, folder: Path) -> Config:
    """Return the configuration with the defaults for the model in `folder`; without its weights,
    with room for the longest row."""
    if any(folder.glob("*.safetensors")):
        return with_model_defaults(config, folder, say=lambda text: None)
    trainer = config.trainer
    longest = -(-config.own_engine.max_model_len // trainer.ranks_per_row)
    if trainer.max_tokens_per_microbatch < longest:
        trainer = trainer.model_copy(update={"max_tokens_per_microbatch": longest})
    return config.model_copy(update={"trainer": trainer})


def folder_of(path: str, *, revision: str | None = None) -> Path:
    """Return the folder of a model with its config.json, of which nothing else is fetched.

    Raises:
        ConfigError: see `resolve_model`.
    """
    return resolve_model(path, revision=revision, only=("config.json",))


def _planned(config: Config, folder: Path, gpu: str) -> MemoryPlan:
    trainer, engine, adapter = config.trainer, config.own_engine, adapter_of(config)
    halves = config.compute_dtype == "bfloat16"
    measured = partial(anatomy_of, bfloat16=halves, frozen=adapter is not None)
    anatomy = measured(folder)
    shapes, vocabulary = anatomy.shapes, anatomy.vocabulary
    matrices = adapter and ModelSize.of(adapter.matrix_shapes(shapes, vocabulary=vocabulary))

    def shapes_of(folder: Path) -> tuple[Shapes, int]:
        found = measured(folder)
        return found.shapes, found.vocabulary

    models = Models.of(config.algo, folder, find=folder_of, shapes_of=shapes_of)
    kept = models.memory(trainer, adapter, dtype=config.compute_dtype)
    assert kept is not None, folder  # the shapes of the policy are known

    card, unit = gpu_of(gpu), trainer.ranks_per_row
    its = anatomy.of_rank(trainer.computed_share)

    def rank(longest: int) -> RankMemory:
        tokens = max(-(-longest // unit), trainer.max_tokens_per_microbatch)
        wanted = trainer.head_chunk_tokens
        if (chunk := wanted) is None:
            chunk = default_chunk(its.vocabulary, tokens, int(card.gb * 1e9))
        passes = Passes(tokens=tokens, chunk=chunk, keeps=KEPT_BYTES)
        trainable = matrices.total if matrices else anatomy.total
        each = 4 * trainable > WHOLE_GRADIENT
        return rank_memory(
            *(its, kept, trainer, passes), trainable=trainable, on_gpu=True, reduces_each=each
        )

    workers = engine.gpus_per_server
    share = engine.gpu_memory_utilization if isinstance(engine, ServerEngineConfig) else 0.0
    kv_bytes = kv_bytes_per_token(folder, "bfloat16")
    worker = engine_memory(
        anatomy.total, kv_bytes, gpu_bytes=card.gb * 1e9, workers=workers, share=share
    )
    own = rank(engine.max_model_len)
    ranks, served = trainer.num_ranks, engine.num_servers * workers
    version = HALF * anatomy.total
    hosts = [([own] * min(ranks, _PER_HOST), []), ([], [worker] * min(served, _PER_HOST))]
    if ranks + served <= _PER_HOST:
        hosts = [([own] * ranks, [worker] * served)]
    host = max(
        host_bytes(some, all_, version=version, kept=config.weights.num_published)
        for some, all_ in hosts
    )
    return MemoryPlan(
        rank=own,
        by_length={n: rank(n).peak for n in _LENGTHS},
        ranks=ranks,
        engine=worker,
        engines=engine.num_servers,
        workers=workers,
        host=host,
        gpu=gpu.upper(),
        room=usable(card.gb * 1e9),
        longest=engine.max_model_len,
    )


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
