"""The sections `trainer` and `weights`: the training, and the transfer of weights to engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import (
    Fitted,
    Needs,
    OneOf,
    OnResume,
    RankKeys,
    Section,
    entry_points_of,
    extension_names,
    missing_member,
    named_or_function,
    none_of,
    one_of,
    with_added_keys,
)
from agentgym_rl.core.registered import offered

OPTIMIZERS = ("adamw", *extension_names("model_optimizers"))
"""The names of `trainer.optimizer`; any other is a function, or stands for the path of one."""

_Attention = OneOf(
    lambda: ["auto", "rows", *extension_names("attentions")], usual="auto", group="attentions"
)
_Decay = Annotated[float, Field(ge=0, lt=1)]


@with_added_keys("trainer")
class TrainerConfig(RankKeys):
    """The FSDP2 trainer."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("betas", "optimizer", f"{' or '.join(OPTIMIZERS)}", one_of(*OPTIMIZERS)),
        Needs(
            "optimizer_options", "optimizer", "a function (module:function)", none_of(*OPTIMIZERS)
        ),
        Needs("learning_rate_floor", "schedule", "linear or cosine", one_of("linear", "cosine")),
    )

    num_ranks: OnResume[int] = Field(default=1, ge=1)
    """The number of trainer processes; the model is sharded over them."""
    num_replicas: OnResume[int] = Field(default=1, ge=1)
    """The copies of the model among the ranks (HSDP): each is sharded over num_ranks / num_replicas
    of them. More copies take more memory and less communication."""
    device: OnResume[Literal["auto", "cpu", "cuda"]] = "auto"
    """The device of the ranks. CUDA is experimental: one H200 has run it."""
    gpus: OnResume[tuple[int, ...]] = ()
    """The GPUs of the ranks, in order; empty: all visible ones."""
    num_threads: OnResume[int] = Field(default=1, ge=1)
    """The torch threads of each rank."""
    num_minibatches: int = Field(default=4, ge=1)
    """The number of optimizer steps per batch."""
    epochs: int = Field(default=1, ge=1)
    """The number of passes over each batch."""
    optimizer: Literal["adamw", "muon", "adamw8bit"] | str = "adamw"
    """The optimizer. muon: orthogonal updates of matrices between embeddings and output layer, and
    AdamW for others; adamw8bit (needs torchao), adamw_bf16: AdamW whose state has 8, 16 bits a
    number; or `module:function`, which gets groups of parameters and `lr`, as torch.optim:SGD."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that function."""
    learning_rate: Fitted[float | None] = Field(default=None, ge=0)
    """The peak learning rate. Unset: by the size of the model, 3e-4 below 20 million
    parameters (the bundled ones), 1e-5 below a billion, 5e-6 below ten billion, else 1e-6."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """The decay of the learning rate over `steps`, down to `learning_rate_floor`."""
    warmup_steps: int = Field(default=0, ge=0)
    """The number of training batches of linear warm-up."""
    learning_rate_floor: float = Field(default=0.1, ge=0, le=1)
    """The final learning rate as a fraction of `learning_rate`."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.99)
    """The decays of AdamW for the mean gradient and for its square."""
    mismatch_warn: OnResume[float | None] = Field(default=None, gt=0)
    """The mean |Δ log-prob| in nats between trainer and engine, on tokens sampled by the batch's
    own weights, above which the run warns once; unset: 0.001, with engine.dtype bfloat16 0.05."""
    mismatch_stop: OnResume[float | None] = Field(default=None, gt=0)
    """The same mean, above which the run ends before it trains on the batch; unset: 0.1, with
    bfloat16 0.5. A large number: never."""
    weight_decay: float = Field(default=0.0, ge=0)
    """The decoupled weight decay: each step multiplies a weight by 1 − learning rate · this number;
    vectors have no decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The bound on the norm of a gradient; a larger one is scaled down to it."""
    max_tokens_per_microbatch: OnResume[Fitted[int]] = Field(default=4096, ge=16)
    """The maximum number of packed tokens of a rank in one forward; at least the longest possible
    row, `engine.max_model_len`, divided by the ranks that share it. A CPU takes fewer (but a whole
    row) if their activations would need more than 400 MB and three quarters of the weights'
    memory."""
    dtype: OnResume[Literal["float32", "bfloat16"] | None] = None
    """The dtype of forward and backward; unset: `engine.dtype`. With float32 beside a bfloat16
    engine, its rounding is a mismatch that behavior weights correct (arl docs trainer)."""
    activation_checkpointing: OnResume[bool] = False
    """The switch to keep only the inputs of the model's blocks, and recompute for the gradient."""
    cpu_offload: OnResume[bool] = False
    """The switch to keep parameters, gradients and optimizer state in CPU memory (on a GPU:
    experimental, not measured yet)."""
    head_chunk_tokens: OnResume[int | None] = Field(default=None, ge=0)
    """The number of tokens whose logits are in memory at once; beyond 128 MB logits are computed
    again for the gradient. 0: all tokens. Unset: all if their logits need at most 64 MB, else
    chunks of 16 MB, if the model's output layer allows it."""
    compile: OnResume[bool] = False
    """The switch to compile blocks with torch.compile (experimental: see arl docs trainer)."""
    attention: OnResume[Annotated[str, _Attention]] = "auto"
    """The attention over packed rows: `rows` computes one after the other with SDPA; `varlen` all
    at once, on a GPU (experimental: one H200 ran it in bfloat16, none in float32); `auto` is
    `varlen` on a GPU if a trial when the model is loaded finds it right."""
    checkpoint_every: OnResume[int] = Field(default=0, ge=0)
    """The steps between checkpoints; 0: by steps only at the end."""
    checkpoint_every_minutes: OnResume[Fitted[float]] = Field(default=0.0, ge=0)
    """The minutes between checkpoints, each after the next step; 0: none by time. Unset, and
    without `checkpoint_every`: 30 from 20 million parameters on, 60 from ten billion on."""
    keep_checkpoints: OnResume[int] = Field(default=2, ge=1)
    """The number of newest checkpoints to keep."""
    keep_best: OnResume[int] = Field(default=0, ge=0)
    """The number of other checkpoints to keep, the best by `best_metric`."""
    best_metric: OnResume[str] = "reward/mean"
    """A metric of the checkpoint's last batch, or one of `eval/…` of its evaluation
    (arl docs metrics): the largest is best, or with a - before its name the smallest. With
    `eval/…` every version that is evaluated on schedule is also saved."""
    max_restarts: OnResume[int] = Field(default=3, ge=0)
    """The maximum number of restarts of the ranks, from the newest checkpoint and within the run,
    when one of them is lost; then the run stops. Ten more trained batches are a new beginning."""
    stall_timeout_s: OnResume[Fitted[float]] = Field(default=900.0, gt=0)
    """The time after which ranks without a request, report or finished pass count as hanging."""
    start_timeout_s: OnResume[Fitted[float]] = Field(default=120.0, gt=0)
    """The longest wait for the trainer to load its model."""
    batch_timeout_s: OnResume[Fitted[float]] = Field(default=600.0, gt=0)
    """The longest time in which the trainer waits for a batch, and engines sample no token for it
    either, before the run stops with an error."""
    finish_timeout_s: OnResume[Fitted[float]] = Field(default=300.0, gt=0)
    """The time limit for a checkpoint, and at the end for the last one and the export."""

    @property
    def num_parts(self) -> int:
        """Return the number of parts of each batch: the ranks of a part compute the same rows."""
        return self.num_ranks // self.ranks_per_row

    @property
    def longest_row(self) -> int:
        """Return the number of tokens that a row may have."""
        return self.max_tokens_per_microbatch * self.ranks_per_row

    @property
    def less_memory(self) -> str:
        """Return, for messages, the keys by which a rank needs less memory, except those in use."""
        unused = (k for k in ("activation_checkpointing", "cpu_offload") if not getattr(self, k))
        keys = "".join(f", trainer.{key}=true" for key in unused)
        return (
            "Less memory takes a smaller trainer.max_tokens_per_microbatch (at least the longest "
            f"row, engine.max_model_len){keys}, or in a new run lora.rank; see `arl plan --memory`"
        )

    @property
    def keeps_best_evaluated(self) -> bool:
        """Return whether evaluations determine the checkpoints to keep."""
        return self.keep_best > 0 and self.best_metric.removeprefix("-").startswith("eval/")

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, optimizer: str) -> str:
        added = entry_points_of("optimizers")
        for group in ("optimizers", "model_optimizers"):
            if why := missing_member(group, optimizer, f"{optimizer!r} is an optimizer"):
                raise ValueError(why)
        name = named_or_function(optimizer, (*OPTIMIZERS, *added))
        return added[name].value if name in added else name

    @model_validator(mode="after")
    def _consistent(self) -> TrainerConfig:
        if self.num_ranks % self.num_replicas:
            raise ValueError(
                f"num_replicas {self.num_replicas} does not divide num_ranks {self.num_ranks}"
            )
        if self.cpu_offload and self.optimizer != "adamw":
            raise ValueError(
                f"optimizer {self.optimizer!r} takes its steps on the device, and cpu_offload "
                "takes them on the CPU: use adamw, or leave cpu_offload out"
            )
        if (way := self.attention) not in ("auto", "rows") and self.device == "cpu":
            raise ValueError(f"attention {way!r} needs a GPU, and device is 'cpu'; use rows")
        return self


class WeightsConfig(Section):
    """The transfer of policy versions from trainer to engines."""

    transport: Annotated[str, OneOf(lambda: offered("engines", "transports"), usual="shm")] = "shm"
    """The transport. `shm`: safetensors files in a folder that both can access. vLLM and SGLang
    only: `gloo` broadcasts over sockets, `nccl` between GPUs; `ipc` is vLLM's own within one GPU,
    and sends the tensors to SGLang in requests. Experimental, not measured yet: `nccl`, and vLLM's
    `ipc`."""
    folder: str = ""
    """The folder of `shm` files; empty: /dev/shm. Engines on other machines need a shared one."""
    keep_versions: Annotated[int, Field(ge=1)] | Literal["all"] = 2
    """The number of versions kept while the run lives; `all` keeps each one in the run's folder for
    good (`weights/v-N/`), which `arl audit` needs."""
    update_timeout_s: Fitted[float] = Field(default=60.0, gt=0)
    """The longest time for every engine to load a new version."""

    @property
    def leaves_files(self) -> bool:
        """Return whether versions are files, which can be read later, too."""
        return self.transport == "shm"

    @property
    def num_published(self) -> int:
        """Return the number of versions kept where engines read them; a run that keeps all of them
        has the others in its own folder."""
        return 2 if self.keep_versions == "all" else self.keep_versions
