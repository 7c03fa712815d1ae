"""The memory of a run, counted before it starts: of a trainer rank, an engine's worker and a host.

What a rank has at most in a step, of a model with P parameters over N ranks (bytes):

    parameters      4 P / N                     masters in float32; frozen ones may be halves
    optimizer       8 P / N                     AdamW; less with 8 bits
    gradients       4 P / N, or                 reduced after each micro-batch
                    4 P                         reduced after the last one of a minibatch
    gathered        4 R + 2 c B                 R outside of blocks, and the block B that computes,
                                                with the next; c bytes a number
    activations     T L k, or                   T tokens, L blocks, k bytes each keeps (anatomy.py)
                    T L c H                     with checkpointing: their inputs of length H
    and the larger  log-probs of T tokens       all at once, or in chunks (`trainer.policy`)
    one of          T k, with checkpointing          the gradients of one block, with what is
                    1.75 T k                    made again before (measured: 1.2 to 1.75)

Loading and publishing have their own peaks; the most of the three counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym_rl.config import TrainerConfig

from .anatomy import Anatomy
from .trainer import FLOAT, HALF, TrainerMemory

_CONTEXT = 1.5e9
"""The bytes that CUDA, its libraries and NCCL take on a device."""
_SHARE = 0.94
"""The share of a device's memory that tensors can fill, beside gaps between them."""
_HOST = 1.5e9
"""The bytes of a process on the host, after its imports, with CUDA."""
_LOADING = 1.15
"""The most that loading takes, in times of what stays."""
_MADE_AGAIN = 1.75
"""The bytes of a block's backward with checkpointing, in times of what the block keeps: all of that
is made again, and gradients of it are alive. Measured (tests/plan/test_memory.py): 1.2 to 1.75."""
_ENGINE_SHARE = 0.9
"""The share of a device that an engine fills by default (vLLM's gpu_memory_utilization)."""
_ENGINE_PASS = 2.5e9
"""The bytes of an engine's passes, graphs and buffers."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The micro-batches of a rank."""

    tokens: int
    """The packed tokens of one."""
    trained: float = 1.0
    """The share of them that train."""
    several: bool = True
    """Whether a minibatch has more than one."""
    room: float = math.inf
    """The bytes of activations to which a CPU limits them."""
    chunk: int = 0
    """The tokens whose logits are in memory at once; 0: all."""
    keeps: float = 0.0
    """The bytes of log-probs that a chunked head keeps at most."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The bytes of a trainer rank on its device, by part, at the peak of a step."""

    parameters: float
    optimizer: float
    others: float
    """The bytes of reference models, teachers and copies for metrics."""
    gradients: float
    gathered: float
    activations: float
    head: float
    """The bytes of the log-probs, or of the gradients of a block, if these are more."""
    loading: float
    """The peak while the model is loaded."""
    publishing: float
    """The peak while a version is written."""
    host: float
    """The bytes of its process on the host."""

    @property
    def step(self) -> float:
        """Return the peak of a training step."""
        kept = self.parameters + self.optimizer + self.others
        return kept + self.gradients + self.gathered + self.activations + self.head

    @property
    def peak(self) -> float:
        return max(self.step, self.loading, self.publishing)


def rank_memory(
    anatomy: Anatomy,
    kept: TrainerMemory,
    trainer: TrainerConfig,
    passes: Passes,
    *,
    trainable: int,
    on_gpu: bool,
    reduces_each: bool = False,
) -> RankMemory:
    """Return the memory of a rank. `kept`: the bytes of all ranks of a copy of the model together;
    `trainable`: the number of parameters that train; `reduces_each`: gradients are reduced after
    each micro-batch."""
    ranks, each = kept.ranks, anatomy.itemsize
    sharded = ranks > 1 or trainer.cpu_offload or (on_gpu and each == HALF)
    parameters, optimizer = kept.weights / ranks, kept.optimizer / ranks
    models = (kept.moving + kept.frozen + kept.critic) / ranks
    others, most = models + kept.noted / ranks, max(kept.gradients, kept.critic_gradients)
    gradients = most / ranks
    if sharded and passes.several and not reduces_each:
        # Every rank keeps the whole sum until it is reduced.
        gradients = max(FLOAT * trainable, kept.critic_gradients)
    blocks = anatomy.total - anatomy.outside
    gathered = 0.0
    if sharded:
        held = 2 * anatomy.largest_block if ranks > 1 else blocks
        gathered = FLOAT * anatomy.outside + each * held
    host = _HOST if on_gpu else 0.0
    if trainer.cpu_offload and on_gpu:
        host += parameters + optimizer + models + most / ranks
        parameters = optimizer = 0.0
        others -= models
        gradients = gradients if passes.several and not reduces_each else 0.0
    elif on_gpu:
        host += parameters + optimizer  # the copy of a checkpoint that is being written
    activations, block = _activations(anatomy, trainer, passes)
    state = parameters + optimizer + others
    return RankMemory(
        parameters=parameters,
        optimizer=optimizer,
        others=others,
        gradients=gradients,
        gathered=gathered,
        activations=activations,
        head=max(_head(anatomy, passes, trainable), block),
        loading=_LOADING * state,
        publishing=state + 2.5 * FLOAT * anatomy.largest_piece,
        host=host,
    )


def _activations(anatomy: Anatomy, trainer: TrainerConfig, passes: Passes) -> tuple[float, float]:
    """Return the bytes that blocks keep of a micro-batch, and what the gradients of one take."""
    block = passes.tokens * anatomy.kept
    if trainer.activation_checkpointing:
        inputs = anatomy.num_blocks * anatomy.hidden * anatomy.itemsize
        return passes.tokens * inputs, _MADE_AGAIN * block
    return min(anatomy.num_blocks * block, passes.room), block


def _head(anatomy: Anatomy, passes: Passes, trainable: int) -> float:
    """Return the bytes of the head's passes, and of the gradient of its matrix."""
    logits = FLOAT * passes.tokens * passes.trained * anatomy.vocabulary
    gradient = FLOAT * anatomy.head if trainable >= anatomy.head else 0
    if not passes.chunk:
        return 3 * logits + gradient
    chunks = 2 * FLOAT * min(passes.chunk, passes.tokens) * anatomy.vocabulary
    hidden = 3 * FLOAT * passes.tokens * anatomy.hidden
    return (logits if logits <= passes.keeps else 0) + chunks + hidden + gradient


# ------------------------------------------------------------------ engines, hosts
@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The bytes of an engine's worker on its device, and on the host."""

    weights: float
    passes: float
    cache: float
    """The room that is left for keys and values; below 0: there is none."""
    cached_tokens: int
    """The tokens of all workers of an engine that fit in there."""
    staging: float
    """The bytes on the host that a version takes while it is loaded."""


def engine_memory(
    parameters: int, kv_bytes: float, *, gpu_bytes: float, workers: int, share: float
) -> EngineMemory:
    """Return the memory of a worker of an engine in bfloat16 with so many `workers`, each on a GPU;
    `kv_bytes` are those of a token, on all of them."""
    weights = HALF * parameters / workers
    cache = gpu_bytes * (share or _ENGINE_SHARE) - weights - _ENGINE_PASS
    return EngineMemory(
        weights=weights,
        passes=_ENGINE_PASS,
        cache=cache,
        cached_tokens=max(0, int(cache * workers / kv_bytes)),
        staging=HALF * parameters,  # each worker reads the whole version
    )


def host_bytes(
    ranks: Sequence[RankMemory], engines: Sequence[EngineMemory], *, version: float, kept: int
) -> float:
    """Return the bytes of a host's memory with these ranks and workers: their processes, what they
    stage, and `kept` versions in /dev/shm."""
    staged = sum(_HOST + engine.staging for engine in engines)
    return sum(rank.host for rank in ranks) + staged + kept * version


# ------------------------------------------------------------------ what would fit
def usable(gpu_bytes: float) -> float:
    """Return the bytes of a GPU that tensors can fill."""
    return _SHARE * gpu_bytes - _CONTEXT


Keys = Mapping[str, object]


def remedies(trainer: TrainerConfig, *, longest: int, ranks: int) -> list[Keys]:
    """Return changes of keys that lower a rank's memory, each on top of those before, those that
    cost the least time first."""
    found: list[Keys] = []
    if trainer.max_tokens_per_microbatch > longest:
        found.append({"trainer.max_tokens_per_microbatch": longest})
    if not trainer.activation_checkpointing:
        found.append({"trainer.activation_checkpointing": True})
    if ranks > trainer.num_ranks:
        found.append({"trainer.num_ranks": ranks})
    if trainer.optimizer == "adamw":
        if not trainer.model_parallel:
            found.append({"trainer.optimizer": "adamw8bit"})
        if not trainer.cpu_offload:
            found.append({"trainer.optimizer": "adamw", "trainer.cpu_offload": True})
    found.append({"lora.rank": 32, "trainer.cpu_offload": trainer.cpu_offload})
    return found
