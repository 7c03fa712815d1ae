"""The trained policy: a packed model, its log-probs and its entropies.

The logits of a micro-batch, [tokens, vocabulary], are often the largest tensor of a pass. With a
`ChunkedHead` they exist for only one chunk of tokens at a time. For the gradient, few of them are
kept once, as log-probs, and more are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentgym_rl.algo import PackedRows, Routers, Tally, routers_of
from agentgym_rl.algo.packing import Allowed
from agentgym_rl.config import Config
from agentgym_rl.core import UNKNOWN_EXPERT, Row, TrainerError, adapter_of
from agentgym_rl.weights import factor, wide_product

from .model_parallel import Vocabulary
from .packed import PackedModel
from .packing_trial import probe
from .spans import Pieces
from .world import World

_LARGE_LOGITS = 64 << 20
"""The bytes of a micro-batch's logits above which they are computed in chunks by default. Plain
autograd holds three to four tensors of this size at once."""
_CHUNK_BYTES = 16 << 20
"""The bytes of logits in a chunk by default: large enough for a fast product of matrices."""
_CHUNK_SHARE = 128
"""The chunks that a GPU's memory would hold: each reads all weights, and adds to their gradient, so
that chunks of less than a thousand tokens take more time for that than for products."""
_FEWEST_IN_CHUNK = 64
_AT_ONCE = 1 << 40
"""A number of tokens that no micro-batch has."""
KEPT_BYTES = 128 << 20
"""The bytes of log-probs that a chunked head keeps from forward to backward at most. Computing them
again takes a third more of the head's time."""

_BARRED = -1e30
"""The logit of a token that was not allowed: its probability is 0, and so is its product with its
log-prob, which is not a number for an infinite one."""


def default_chunk(vocab_size: int, microbatch_tokens: int, gpu_bytes: int = 0) -> int:
    """Return the number of tokens whose float32 logits are in memory at once by default; 0: those
    of all `microbatch_tokens`, because they are small. `gpu_bytes` is the memory of a GPU."""
    per_token = 4 * vocab_size
    if per_token * microbatch_tokens <= _LARGE_LOGITS:
        return 0
    return max(_FEWEST_IN_CHUNK, max(_CHUNK_BYTES, gpu_bytes // _CHUNK_SHARE) // per_token)


def head_dtype(device: torch.device, own: torch.dtype, *, half: bool) -> torch.dtype:
    """Return the dtype of the factors of a head's products, which is that of engines: bfloat16 on a
    GPU if blocks compute in it, else the head's own."""
    return torch.bfloat16 if half and device.type == "cuda" else own


class ChunkedHead:
    """An output layer's forward that returns each given token's log-prob, and the entropy of its
    distribution and the log-probs of other tokens if requested, instead of logits.

    Raises TrainerError if the output layer is not a Linear without a bias.
    """

    def __init__(self, head: nn.Module, chunk_tokens: int, *, divisor: float = 1.0):
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise TrainerError(
                f"trainer.head_chunk_tokens: the output layer is {head}, expected a Linear "
                "without a bias; set it to 0"
            )
        self._head = head
        self._chunk_tokens = chunk_tokens
        self._divisor = divisor
        """The number that the model divides its logits by (Granite)."""
        self._packed: PackedRows | None = None
        self.dtype = head.weight.dtype
        """The dtype of the factors of products; sums are in float32 or better."""
        self.entropies = False
        """Whether to compute entropies, too; if not, they are 0."""
        self.others: Tensor | None = None
        """The ids of other tokens whose log-probs are wanted, [P, K]."""
        self.likeliest: tuple[int, int] | None = None
        """The number of likeliest tokens wanted, among how many; without gradients."""
        self.vocabulary = _COMPLETE
        self._rows: Tensor | None = None

    def expect(self, packed: PackedRows, rows: Tensor | None = None) -> None:
        """Set the predictions of the next forward, on the device of that forward: those at `rows`
        of all, if they are not all."""
        self._packed, self._rows = packed, rows

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return [1, P, 2 + K], log-probs, entropies and the log-probs of `others`, for hidden
        states [1, P, H] at `packed.positions`; or what `Policy.likeliest` returns of them."""
        assert self._packed is not None
        weight, targets = self._head.weight, self._packed.targets[:, None]
        if self.likeliest is not None:
            return self._likeliest(factor(hidden[0], self.dtype), *self.likeliest)[None]
        if (others := self.others) is not None:
            others = others if self._rows is None else others[self._rows]
            targets = torch.cat([targets, others], 1)
        size = 4 * len(targets) * len(weight)
        options = _Options(
            self._chunk_tokens,
            allowed=self._packed.allowed,
            entropies=self.entropies,
            keeps=torch.is_grad_enabled() and size <= KEPT_BYTES,
            dtype=self.dtype,
            vocabulary=self.vocabulary,
        )
        scores: Any = _ChunkedScores.apply
        heat = self._packed.temperatures.double() * self._divisor
        return scores(hidden[0], weight, targets, heat, options)

    def _likeliest(self, hidden: Tensor, count: int, vocab_size: int) -> Tensor:
        packed = self._packed
        assert packed is not None
        parts, weight = list[Tensor](), factor(self._head.weight, self.dtype)
        for part in _chunks(len(hidden), self._chunk_tokens):
            heat = packed.temperatures.double() * self._divisor
            args = (hidden, weight, heat, packed.allowed, part)
            logprobs = _logprobs(*args, self.vocabulary)
            top = self.vocabulary.likeliest(logprobs, count, vocab_size)
            chosen = _chosen(logprobs, packed.targets[part, None], self.vocabulary)
            chosen = self.vocabulary.total(chosen)
            parts.append(torch.cat([chosen, top[0], top[1].to(logprobs.dtype)], 1))
        return torch.cat(parts)


_COMPLETE = Vocabulary()


class _Options(NamedTuple):
    chunk_tokens: int
    allowed: Allowed | None
    entropies: bool
    keeps: bool
    """Whether log-probs are kept for the backward pass rather than computed again."""
    dtype: torch.dtype
    """The dtype of the factors of products."""
    vocabulary: Vocabulary = _COMPLETE


class _ChunkedScores(torch.autograd.Function):
    """The autograd function for [1, N, 1 + K] log-probs, with entropies as the second column."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        targets: Tensor,  # [N, K]
        temperatures: Tensor,  # [N]
        options: _Options,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets, temperatures)
        ctx.options, ctx.kept = options, []
        hidden, weight = (factor(x, options.dtype) for x in (hidden, weight))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scores = hidden.new_zeros(1, len(hidden), 1 + targets.shape[1], dtype=wide)
        words = options.vocabulary
        for part in _chunks(len(hidden), options.chunk_tokens):
            logprobs = _logprobs(hidden, weight, temperatures, options.allowed, part, words)
            chosen = _chosen(logprobs, targets[part], words)
            scores[0, part, 0], scores[0, part, 2:] = chosen[:, 0], chosen[:, 1:]
            if options.entropies:
                scores[0, part, 1] = _entropies(logprobs)
            if options.keeps:
                ctx.kept.append(logprobs)
        scores = words.total(scores)
        ctx.entropies = scores[0, :, 1] if options.entropies else None
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients: for p = softmax(z), ∂ log p_y/∂z = 1_y − p and ∂H/∂z = −p · (log p +
        H)."""
        hidden, weight, targets, temperatures = ctx.saved_tensors
        of_entropy = gradients[0][0, :, 1]
        of_logprobs = torch.cat([gradients[0][0, :, :1], gradients[0][0, :, 2:]], 1)
        kept, ctx.kept = ctx.kept[::-1], []
        to_hidden, to_weight, words = torch.empty_like(hidden), None, ctx.options.vocabulary
        hidden, low = (factor(x, ctx.options.dtype) for x in (hidden, weight))
        for part in _chunks(len(hidden), ctx.options.chunk_tokens):
            logprobs = kept.pop() if kept else None
            if logprobs is None:
                allowed = ctx.options.allowed
                logprobs = _logprobs(hidden, low, temperatures, allowed, part, words)
            pull = of_logprobs[part].sum(1, keepdim=True)
            if ctx.options.entropies:
                inner = logprobs + ctx.entropies[part, None]
                pull = pull + of_entropy[part, None] * inner
            to_logits = logprobs.exp_().mul_(pull).neg_()
            places, inside = _places(targets[part], words, to_logits.shape[1])
            to_logits.scatter_add_(1, places, of_logprobs[part] * inside)
            heat = temperatures[part, None].to(to_logits.dtype)
            to_logits = factor(to_logits.div_(heat), ctx.options.dtype)
            to_hidden[part] = wide_product(to_logits, low)
            if not ctx.needs_input_grad[1]:
                continue
            if to_weight is None:
                to_weight = wide_product(to_logits.T, hidden[part])
            elif to_weight.dtype == low.dtype:
                to_weight.addmm_(to_logits.T, hidden[part])
            else:
                to_weight += wide_product(to_logits.T, hidden[part])
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
        return to_hidden, to_weight, None, None, None


def _chunks(num_tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(i, i + chunk_tokens) for i in range(0, num_tokens, chunk_tokens)]


def _logprobs(
    hidden: Tensor,
    weight: Tensor,
    temperatures: Tensor,
    allowed: Allowed | None,
    part: slice,
    words: Vocabulary,
) -> Tensor:
    """Return log-probs [C, V] of the tokens of `part`, in float32 or better."""
    logits = wide_product(hidden[part], weight.T)
    logits.div_(temperatures[part, None].to(logits.dtype))
    if allowed is not None:
        barred = allowed.barred(part, words.end or logits.shape[1])[:, words.start :]
        logits.masked_fill_(barred, _BARRED)
    return words.log_softmax(logits)


def _places(ids: Tensor, words: Vocabulary, count: int) -> tuple[Tensor, Tensor]:
    """Return the columns of tokens among the `count` that a rank computes, and whether it does."""
    local = ids - words.start
    return local.clamp(0, count - 1), (local >= 0) & (local < count)


def _chosen(logprobs: Tensor, ids: Tensor, words: Vocabulary) -> Tensor:
    """Return the log-probs [C, K] of tokens [C, K]; 0 for those of other ranks."""
    places, inside = _places(ids, words, logprobs.shape[1])
    return logprobs.gather(1, places) * inside


def _and_likeliest(logprobs: Tensor, targets: Tensor, count: int, vocab_size: int) -> Tensor:
    """Return [C, 1 + 2 · count]: the log-probs of the targets, and those of the likeliest of the
    first `vocab_size` tokens, with their ids, which float32 holds up to 2**24."""
    top = logprobs[:, :vocab_size].topk(count, dim=1)
    chosen = logprobs.gather(1, targets[:, None])
    return torch.cat([chosen, top.values, top.indices.to(logprobs.dtype)], 1)


def _entropies(logprobs: Tensor) -> Tensor:
    return -(logprobs.exp() * logprobs).sum(-1)


class Scores(NamedTuple):
    """The scores of the packed trained tokens at their sampling temperatures; both [N]."""

    logprobs: Tensor
    entropies: Tensor
    """The entropies, in nats, of the full distributions that the tokens were sampled from."""
    others: Tensor | None = None
    """The log-probs of other tokens in their place, [N, K], if requested."""


class Policy(PackedModel):
    """A causal language model over the ranks of `world`; float32 master weights."""

    _head: ChunkedHead | None = None
    _routers: Routers | None = None
    _replays = True
    _routed: Tensor = torch.zeros(2, dtype=torch.long)
    """The number of tokens of passes whose experts were known, and of those that were rerouted."""
    _routable = 0
    """The number of all tokens of those passes."""

    @classmethod
    def configured(cls, config: Config, model_dir: Path, world: World) -> Policy:
        """Load the policy that a run trains, with the weights in `model_dir`; see `load`."""
        return cls.load(
            model_dir,
            world,
            compute_dtype=config.compute_dtype,
            trainer=config.trainer,
            adapter=adapter_of(config),
            seed=config.seed,
            routing_replay=config.own_engine.routing_replay,
        )

    def _change_routers(self, wanted: Literal["auto", "on", "off"]) -> None:
        self._routers = routers_of(self.model, wanted)

    @torch.no_grad()
    def _change_head(self) -> None:
        """Install the chunked head, if it is configured, or large and possible, and check that it
        equals the model's own output."""
        device, chunk = self.world.device, self._trainer.head_chunk_tokens
        if (wanted := chunk) is None:
            on_gpu = device.type == "cuda"
            room = torch.cuda.get_device_properties(device).total_memory if on_gpu else 0
            chunk = default_chunk(self.vocab_size, self.microbatch_tokens, room)
        if self._trainer.ranks_per_row > 1:  # these exchange log-probs, not logits
            chunk = chunk or _AT_ONCE
        if not chunk:
            return
        with self.unreplayed():  # its tokens are none of a batch
            self._install_head(chunk, must=bool(wanted))

    def _install_head(self, chunk: int, *, must: bool) -> None:
        """Install a chunked head, if it equals the model's own output.

        Raises:
            TrainerError: it does not, and `must` be installed.
        """
        device = self.world.device
        packed = probe(device)
        expected = self.scores(packed)
        layer = self.model.get_output_embeddings()
        own = layer.forward
        least = 0.1 if self.model.dtype.itemsize == 2 else 1e-3  # its own output is rounded
        config = self.model.config.get_text_config()
        divisor = getattr(config, "logits_scaling", None)
        try:
            self._head = ChunkedHead(layer, chunk, divisor=float(divisor or 1.0))
            if divisor:
                config.logits_scaling = 1.0  # the head divides, and returns no logits
            layer.forward = self._head
            for found, right in zip(self.scores(packed)[:2], expected[:2], strict=True):
                if not torch.allclose(found, right, rtol=1e-3, atol=least):
                    raise TrainerError(
                        f"trainer.head_chunk_tokens: {type(self.model).__name__} does more to its "
                        "logits than its output layer does; set it to 0"
                    )
            self._head.dtype = head_dtype(device, layer.weight.dtype, half=self._half)
        except TrainerError:
            self._head, layer.forward = None, own
            if divisor:
                config.logits_scaling = divisor
            if must:
                raise

    def logprobs(self, packed: PackedRows) -> Tensor:
        """Return log-probs [N] of the packed trained tokens at the temperatures they were sampled
        at, among the tokens that were allowed.

        Gradients flow unless disabled. Collective: every rank calls this equally often.
        """
        packed = packed.to(self.world.device)
        if self._head:
            self._head.entropies, self._head.others, self._head.likeliest = False, None, None
            return self.outputs(packed)[:, 0][packed.index]
        found = -F.cross_entropy(self._logits(packed), packed.targets, reduction="none")
        return found[packed.index]

    def scores(self, packed: PackedRows, others: Tensor | None = None) -> Scores:
        """Return `logprobs`, the entropies of the same distributions, and the log-probs of the
        tokens `others`, [N, K], in the place of each trained one. Trained tokens that share a
        prediction need the same others."""
        packed = packed.to(self.world.device)
        if others is not None:
            by_prediction = others.new_zeros(len(packed.targets), others.shape[1])
            others = by_prediction.to(self.world.device).index_copy_(
                0, packed.index, others.to(self.world.device)
            )
        if self._head:
            self._head.entropies, self._head.others, self._head.likeliest = True, others, None
            found = self.outputs(packed)[packed.index]
            return Scores(found[:, 0], found[:, 1], None if others is None else found[:, 2:])
        logprobs = torch.log_softmax(self._logits(packed), -1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(1, packed.targets[:, None])[:, 0]
        beside = None if others is None else logprobs.gather(1, others)[packed.index]
        return Scores(chosen[packed.index], entropies[packed.index], beside)

    def likeliest(self, packed: PackedRows, *, count: int, vocab_size: int) -> Tensor:
        """Return `logprobs`, and the `count` likeliest of the first `vocab_size` tokens in the
        place of each trained one, [N, 1 + 2 · count]: their log-probs, then their ids."""
        packed = packed.to(self.world.device)
        if self._head:
            self._head.likeliest = count, vocab_size
            return self.outputs(packed)[packed.index]
        logprobs = torch.log_softmax(self._logits(packed), -1)
        return _and_likeliest(logprobs, packed.targets, count, vocab_size)[packed.index]

    @property
    def cuts_vocabulary(self) -> bool:
        return self._head is not None

    def cut_vocabulary(self, vocabulary: Vocabulary) -> None:
        assert self._head is not None
        self._head.vocabulary = vocabulary

    def _compute(
        self, packed: PackedRows, rows: Tensor | None = None, pieces: Pieces | None = None
    ) -> Tensor:
        if self._head:
            self._head.expect(packed, rows)
        if self._routers:
            # Beyond this forward, too: the backward pass may repeat parts of it.
            self._routers.give(packed.experts if self._replays else None)
        found = super()._compute(packed, rows, pieces)
        if self._routers and self._replays and packed.experts is not None:
            known = (packed.experts != UNKNOWN_EXPERT).all(-1).all(-1)
            counts = torch.stack([known.sum(), self._routers.differs.sum()])
            self._routed = self._routed + counts.cpu()
        return found

    def outputs(self, packed: PackedRows) -> Tensor:
        if self._routers and self._replays:
            self._routable += packed.tokens.shape[1]
        return super().outputs(packed)

    def idle(self) -> Tensor:
        with self.unreplayed():  # its tokens are none of the batch
            return super().idle()

    def tally_routing(self, tally: Tally) -> None:
        """Add what replay did in the passes since the last call: `mismatch/experts_known` and
        `mismatch/experts_differ`."""
        if self.parallel is not None:
            self._routed = self.parallel.total(self._routed)
        known, differ = self._routed.tolist()
        if self._routable:
            tally.mean("mismatch/experts_known", known, self._routable)
        if known:
            tally.mean("mismatch/experts_differ", differ, known)
        self._routed, self._routable = torch.zeros(2, dtype=torch.long), 0

    @contextmanager
    def unreplayed(self) -> Iterator[None]:
        """Let routers choose all experts themselves while the context is open."""
        before, self._replays = self._replays, False
        try:
            yield
        finally:
            self._replays = before

    def _logits(self, packed: PackedRows) -> Tensor:
        """Return logits [P, V] at the recorded temperatures, in float32 or better; those of tokens
        that were not allowed are `_BARRED`."""
        logits = self.outputs(packed)
        if logits.dtype != torch.float64:
            logits = logits.float()
        logits = logits / packed.temperatures.to(logits.dtype)[:, None]
        if packed.allowed is None:
            return logits
        barred = packed.allowed.barred(slice(None), logits.shape[1])
        return logits.masked_fill(barred, _BARRED)


class PolicyBase:
    """The policy without its adapter: a reference model that takes no extra memory."""

    def __init__(self, policy: Policy):
        assert policy.adapter is not None
        self._policy, self._adapter = policy, policy.adapter
        self.world = policy.world
        self.vocab_size = policy.vocab_size

    def logprobs(self, packed: PackedRows) -> Tensor:
        """Return log-probs of the base model; see `Policy.logprobs`."""
        with self._adapter.off(), self._policy.unreplayed():
            return self._policy.logprobs(packed)

    def micro_batches(
        self, rows: Sequence[Row], *, least: int = 1
    ) -> Iterator[tuple[list[int], PackedRows]]:
        """Yield micro-batches; see `PackedModel.micro_batches`."""
        return self._policy.micro_batches(rows, least=least)

    def wait_for(self, tokens: int) -> None:
        """Count the tokens of the fullest rank."""
        self._policy.wait_for(tokens)

    def idle(self) -> Tensor:
        """Match a pass of other ranks; see `PackedModel.idle`."""
        return self._policy.idle()
