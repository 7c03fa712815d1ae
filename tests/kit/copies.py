"""A trainer backend of another package: torch's DistributedDataParallel, and padded rows.

Each rank has the whole model. The objective is the `Stepper`'s; all that holds, computes and moves
the weights is here. Tests install this file as a package (test_extensions_trainers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import PackedRows, Tally, micro_batches, pack_rows
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, Row, TrainerError, adapter_of, tensor_heads
from agentgym_rl.storage import Manifest, read_manifest
from agentgym_rl.trainer import Stepper, World, export_model
from agentgym_rl.trainer.checkpoint import Checkpoints
from agentgym_rl.trainer.policy import Scores
from agentgym_rl.weights import Piece, kinds_of

_ROW = Row(
    *(np.zeros(2, np.int32), np.array([False, True]), np.zeros(2, np.float32)),
    *(np.zeros(2, np.int32), np.zeros(2, np.int32), np.ones(2, np.float32)),
    *(np.zeros(2, np.int32), np.zeros(2)),
)
_ONE = pack_rows([_ROW])
"""What a rank computes that has no rows left, in step with the others."""


def _added(state, bucket):  # torch compares annotations with classes
    """Return the sum of a bucket of gradients over ranks; DistributedDataParallel's is their mean,
    and losses are parts of one sum."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda it: it.value()[0])


class Whole(Checkpoints):
    """Checkpoints in one file, which rank 0 writes."""

    def write(self, part: Path) -> Future[Any]:
        if self.policy.world.rank == 0:
            model, optimizer = self.policy.model.state_dict(), self.optimizer.state_dict()
            state = {"model": model, "optimizer": optimizer, "random": torch.get_rng_state()}
            torch.save(state, part / "whole.pt")
        done: Future[Any] = Future()
        done.set_result(None)
        return done


class Padded(torch.nn.Module):
    """A causal language model; a forward returns the logits of packed rows, [T, V]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, packed: PackedRows) -> Tensor:
        rows = packed.tokens[0].split(list(packed.lengths))
        there = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        tokens = pad_sequence(list(rows), batch_first=True)
        found = self.model(tokens, attention_mask=there, use_cache=False).logits
        return found[there.bool()]


class Copy:
    """The model of a rank, with what the `Stepper` and the rank ask of a policy."""

    adapter = names = None
    packs = True
    rounded_matrices = frozenset[str]()

    def __init__(self, model: Any, world: World, model_dir: Path, most_tokens: int) -> None:
        self.model, self.world = model.eval(), world
        self.vocab_size = int(model.config.vocab_size)
        self.microbatch_tokens = most_tokens
        self.flops, self.computed_tokens, self.row_tokens, self.fullest_tokens = 0.0, 0, 0, 0
        self._padded: Any = Padded(model)
        if world.size > 1:
            self._padded = DistributedDataParallel(self._padded, broadcast_buffers=False)
            self._padded.register_comm_hook(None, _added)
        own = model.state_dict(keep_vars=True)
        self._tensors = {name: own[name].detach() for name in tensor_heads(model_dir)}

    def budget(self, lengths: Sequence[int]) -> int:
        return max([self.microbatch_tokens, *lengths])

    def micro_batches(
        self, rows: Sequence[Row], *, least: int = 1
    ) -> Iterator[tuple[list[int], PackedRows]]:
        most = self.budget([len(row) for row in rows])
        return micro_batches(rows, most, share=False, least=least)

    def logprobs(self, packed: PackedRows) -> Tensor:
        return self.scores(packed).logprobs

    def scores(self, packed: PackedRows, others: Tensor | None = None) -> Scores:
        if others is not None or packed.allowed is not None or packed.experts is not None:
            raise TrainerError("the backend copies knows no grammars, teachers and experts")
        self.computed_tokens += packed.num_row_tokens
        self.row_tokens += packed.num_row_tokens
        self.flops += packed.num_row_tokens
        logits = self._padded(packed)[packed.positions] / packed.temperatures[:, None]
        logprobs = torch.log_softmax(logits, -1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(1, packed.targets[:, None])[:, 0]
        return Scores(chosen[packed.index], entropies[packed.index])

    def unpacked(self) -> AbstractContextManager[None]:
        return nullcontext()  # padded rows are computed as transformers does

    def idle(self) -> Tensor:
        return self._padded(_ONE).sum() * 0.0

    def wait_for(self, tokens: int) -> None:
        self.fullest_tokens += tokens

    def synchronize_gradients(self, last: bool) -> None:
        self._padded.require_backward_grad_sync = last  # as DistributedDataParallel.no_sync does

    def tally_routing(self, tally: Tally) -> None: ...
    def give_back_memory(self) -> None: ...

    def pieces(self) -> list[Piece]:
        return [Piece((name,), kinds_of({name: it})) for name, it in self._tensors.items()]

    def gathered(self, owners: Sequence[int] | None = None) -> Iterator[dict[str, Tensor]]:
        for number, (name, it) in enumerate(self._tensors.items()):
            yield {name: it} if self.world.rank == (owners[number] if owners else 0) else {}


class Copies(Stepper):
    """The trainer: plain AdamW over a copy for each rank."""

    policy: Any

    def take_step(self) -> float:
        norm = clip_grad_norm_(self.policy.model.parameters(), self._trainer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def checkpoints(self, folder: Path, **options: Any) -> Checkpoints:
        return Whole(folder, self.policy, self.optimizer, **options)

    def export(self, folder: Path, *, model_dir: Path) -> Path:
        state = {name: it for part in self.policy.gathered() for name, it in part.items()}
        if self.policy.world.rank == 0:
            export_model(folder, state, model_dir=model_dir)
        return folder

    def restore(self, checkpoint: Path) -> Manifest:
        manifest = read_manifest(checkpoint)
        state = torch.load(checkpoint / "whole.pt", weights_only=True)
        self.policy.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return manifest


def load(config: Config, world: World, model_dir: Path) -> Copies:
    trainer = config.trainer
    if adapter_of(config) or config.compute_dtype != "float32" or trainer.optimizer != "adamw":
        raise ConfigError("trainer.backend copies: all weights, in float32, with adamw")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    copy: Any = Copy(model, world, model_dir, trainer.max_tokens_per_microbatch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=trainer.betas, weight_decay=0.0)
    its: Any = {"num_steps": config.steps, "seed": config.seed}
    return Copies(copy, optimizer, algo=config.algo, trainer=trainer, **its)
