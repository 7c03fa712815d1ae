"""The trained policy: a packed model and its log-probs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.config import Config
from agentgym_rl.core.errors import TrainerError

from .head import ChunkedHead
from .packed import PackedModel, probe
from .world import World


class Scores(NamedTuple):
    """The scores of the packed trained tokens at their sampling temperatures; both [N]."""

    logprobs: Tensor
    entropies: Tensor
    """The entropies, in nats, of the full distributions that the tokens were sampled from."""


class Policy(PackedModel):
    """A causal language model over the ranks of `world`; float32 master weights."""

    _head: ChunkedHead | None = None

    @classmethod
    def configured(cls, config: Config, model_dir: Path, world: World) -> Policy:
        """Load the policy that a run trains, with the weights in `model_dir`; see `load`."""
        return cls.load(
            model_dir,
            world,
            compute_dtype=config.own_engine.dtype,
            trainer=config.trainer,
            lora=config.lora,
            seed=config.seed,
        )

    @torch.no_grad()
    def _change_head(self) -> None:
        """Install the chunked head, if configured, and check that it equals the model's own
        output."""
        if not self._trainer.head_chunk_tokens:
            return
        packed = probe(self.world.device)
        expected = self.scores(packed)
        layer = self.model.get_output_embeddings()
        self._head = ChunkedHead(layer, self._trainer.head_chunk_tokens)
        layer.forward = self._head
        for found, right in zip(self.scores(packed), expected, strict=True):
            if not torch.allclose(found, right, rtol=1e-3, atol=1e-3):
                raise TrainerError(
                    f"trainer.head_chunk_tokens: {type(self.model).__name__} does more to its "
                    "logits than its output layer does; set it to 0"
                )

    def logprobs(self, packed: PackedRows) -> Tensor:
        """Return log-probs [N] of the packed trained tokens at the temperatures they were sampled
        at.

        Gradients flow unless disabled. Collective: every rank calls this equally often.
        """
        packed = packed.to(self.world.device)
        if self._head:
            return self.outputs(packed)[:, 0]
        return -F.cross_entropy(self._logits(packed), packed.targets, reduction="none")

    def scores(self, packed: PackedRows) -> Scores:
        """Return `logprobs`, and the entropies of the same distributions."""
        packed = packed.to(self.world.device)
        if self._head:
            return Scores(*self.outputs(packed).unbind(-1))
        logprobs = torch.log_softmax(self._logits(packed), -1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return Scores(logprobs.gather(1, packed.targets[:, None])[:, 0], entropies)

    def outputs(self, packed: PackedRows) -> Tensor:
        if self._head:
            self._head.expect(packed)
        return super().outputs(packed)

    def _logits(self, packed: PackedRows) -> Tensor:
        """Return logits [N, V] at the recorded temperatures, in float32 or better."""
        logits = self.outputs(packed)
        if logits.dtype != torch.float64:
            logits = logits.float()
        return logits / packed.temperatures.to(logits.dtype)[:, None]


class PolicyBase:
    """The policy without its adapter: a reference model that takes no extra memory."""

    def __init__(self, policy: Policy):
        assert policy.adapter is not None
        self._policy, self._adapter = policy, policy.adapter
        self.world = policy.world
        self.vocab_size = policy.vocab_size

    def logprobs(self, packed: PackedRows) -> Tensor:
        """Return log-probs of the base model; see `Policy.logprobs`."""
        with self._adapter.off():
            return self._policy.logprobs(packed)

    def idle(self) -> Tensor:
        """Match a pass of other ranks; see `PackedModel.idle`."""
        return self._policy.idle()
