"""`trainer` and `weights`: who learns, and how what was learned travels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from .section import Section

_Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainerConfig(Section):
    """The FSDP2 trainer."""

    absent: ClassVar[Mapping[str, str]] = {
        "tensor_parallel": "a rank computes whole matrices, which num_ranks shards in memory alone "
        "(docs/trainer.md#not-supported)",
        "context_parallel": "a rank computes whole rows; activation_checkpointing and "
        "head_chunk_tokens make room for long ones (docs/trainer.md#not-supported)",
    }

    num_ranks: int = Field(default=1, ge=1)
    """Trainer processes; the model is sharded over them."""
    num_replicas: int = Field(default=1, ge=1)
    """Copies of the model among the ranks (HSDP): each is sharded over num_ranks / num_replicas
    of them. More copies take more memory and less communication."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """CUDA is experimental: not measured yet."""
    gpus: tuple[int, ...] = ()
    """GPUs of the ranks, in order; empty: those visible."""
    num_threads: int = Field(default=1, ge=1)
    """Torch threads of each rank."""
    num_minibatches: int = Field(default=4, ge=1)
    """Optimizer steps a batch is split into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    learning_rate: float = Field(default=3e-4, ge=0)
    critic_learning_rate: float | None = Field(default=None, ge=0)
    """Of the critic, on the same schedule (default: `learning_rate`)."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    """Training batches of linear warm-up."""
    learning_rate_floor: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a fraction of `learning_rate`."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.99)
    """AdamW's decays of the mean gradient and of its square."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens_per_microbatch: int = Field(default=4096, ge=16)
    """Packed tokens of one forward; at least `engine.max_model_len`, the longest row there is."""
    activation_checkpointing: bool = False
    """Keep only the inputs of the model's blocks, and compute each again for its gradient."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in the CPU's memory (on a GPU: experimental,
    not measured yet)."""
    head_chunk_tokens: int = Field(default=0, ge=0)
    """Tokens whose logits are in memory at once; computed again for the gradient. 0: all."""
    compile: bool = False
    """Compile the model's blocks with torch.compile (experimental: see docs/trainer.md)."""
    attention: Literal["rows", "varlen"] = "rows"
    """Of packed rows: one after the other with SDPA, or all at once with torch's variable-length
    flash attention (a GPU and engine.dtype bfloat16; experimental: not run yet)."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """Dense bfloat16 teraFLOP/s of one device, for throughput/mfu; unset: known for many GPUs."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Steps between checkpoints; 0: by steps only at the end."""
    checkpoint_every_minutes: float = Field(default=0.0, ge=0)
    """Minutes between checkpoints, after the next step; 0: by time none."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest ones that stay."""
    keep_best: int = Field(default=0, ge=0)
    """Of all others, the best ones by `best_metric` that stay too."""
    best_metric: str = "reward/mean"
    """A metric of the checkpoint's last batch, or one of `eval/…` of its evaluation
    (docs/metrics.md): the largest is best, or with a - before its name the smallest. With
    `eval/…` every version that is evaluated on schedule is saved, too."""
    max_restarts: int = Field(default=3, ge=0)
    """Times the ranks are started again, from the newest checkpoint and within the run, when one
    of them is lost; then the run stops."""
    stall_timeout_s: float = Field(default=900.0, gt=0)
    """Longest time that the ranks may ask for and report nothing: then they hang."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for the trainer to load its model."""
    batch_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait of the trainer for one batch before the run stops with an error."""
    finish_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time for a checkpoint, and at the end for the last one and the export."""

    @property
    def keeps_best_evaluated(self) -> bool:
        """Whether it depends on evaluations which checkpoints stay."""
        return self.keep_best > 0 and self.best_metric.removeprefix("-").startswith("eval/")

    @model_validator(mode="after")
    def _consistent(self) -> TrainerConfig:
        if self.num_ranks % self.num_replicas:
            raise ValueError(
                f"num_replicas {self.num_replicas} does not divide num_ranks {self.num_ranks}"
            )
        if self.attention == "varlen" and self.device == "cpu":
            raise ValueError("attention 'varlen' needs a GPU, and device is 'cpu'; use rows")
        return self


class WeightsConfig(Section):
    """How policy versions travel from trainer to engines."""

    transport: Literal["shm", "gloo", "nccl", "ipc"] = "shm"
    """`shm`: safetensors files in a folder both can see. vLLM only: `gloo` broadcasts over
    sockets; `nccl` between GPUs and `ipc` within one are vLLM's own (experimental: not
    measured yet)."""
    folder: str = ""
    """Where `shm` files go; empty: /dev/shm. Engines on other machines need a shared one."""
    keep_versions: Annotated[int, Field(ge=1)] | Literal["all"] = 2
    """Versions kept while the run lives; `all` keeps each one in the run's folder for good
    (`weights/v-N.safetensors`), which `arl audit` needs."""
    update_timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for every engine to take a new version."""
