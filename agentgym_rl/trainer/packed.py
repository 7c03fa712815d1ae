"""A transformers model sharded over the trainer's ranks and fed with packed rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym_rl.algo import PackedRows, micro_batches
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import AdapterKeys, ConfigError, Row, TrainerError
from agentgym_rl.runtime import give_back_memory
from agentgym_rl.weights import (
    KnownKinds,
    Piece,
    SourceNames,
    inner_linears,
    kinds_of,
    set_own_attention,
)
from agentgym_rl.weights.files import Kind

from .adapter import Adapter, add_adapter
from .model_parallel import Cut, ModelParallel, Vocabulary, model_parallel
from .packing_trial import (
    ROW_BY_ROW,
    activation_bytes,
    choose_attention,
    forward_packed,
    forward_row_by_row,
    pack_tokens,
)
from .sharding import Gathering, blocks_of, in_bfloat16, shard
from .slices import Slices
from .spans import Pieces
from .usage import FlopCount
from .world import World

_SHARE = 0.75
"""The memory of a micro-batch's activations on a CPU, as a share of the weights', which take four
times their own with gradients and Adam."""
_ROOM = 384 << 20
"""The bytes of activations below which a micro-batch on a CPU is not made smaller."""
WHOLE_GRADIENT = 1 << 30
"""The bytes of gradients up to which a rank adds up those of micro-batches whole, and sends them
once a minibatch."""
_FEWEST_TOKENS = 64
_TWO_TOKENS = pack_tokens(((0, 0),))


class PackedModel:
    """A causal language model, sharded with FSDP2; a subclass defines its outputs per token."""

    parallel: ModelParallel | None = None
    """The division of rows, matrices and experts; None: a rank computes them whole."""

    def __init__(
        self,
        model: Any,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        trainer: TrainerConfig | None = None,
        adapter: Adapter | None = None,
        names: SourceNames | None = None,
        routing_replay: Literal["auto", "on", "off"] = "off",
        slices: Slices | None = None,
    ):
        """Take over `model` (a transformers causal LM, which may have an `adapter`): choose its
        attention, and shard it as configured by `trainer`. With `slices`, only this rank's part of
        it is in memory.

        Raises:
            TrainerError: the model cannot be computed so.
        """
        self._half = compute_dtype == "bfloat16"
        # eval: dropout would make two log-probs of the same token differ.
        self.model = model.eval()
        model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(world.device))
        self.world = world
        self.adapter = adapter
        """The adapter; if there is one, nothing else is trained."""
        self.names = names
        """The tensor names of the model's folder; None after a change of the model."""
        self._pieces: list[Piece] | None = None
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self._trainer = trainer or TrainerConfig()
        self._own_attention = set_own_attention(self.model)
        slices = slices or Slices(world, {})
        with slices.gathered(self.model, blocks_of(self.model), wide=not self._half):
            light = self._try(compute_dtype, routing_replay)
        self._flops = FlopCount.of(self.model)
        self.parallel = model_parallel(self._trainer, world)
        if self.parallel is not None:
            self.parallel.cut(self, slices)
        options = {"light": light, "slices": slices, "parallel": self.parallel}
        shard(self.model, world, compute_dtype, self._trainer, **options)
        if self.parallel is not None:
            self.parallel.mark(self.model)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.shards_gradients = 4 * trained > WHOLE_GRADIENT
        """Whether each micro-batch's gradients are sent to the ranks that keep them, 4 bytes a
        trained number; otherwise each rank keeps all of them until the last one of a minibatch."""

    def _try(self, compute_dtype: str, routing_replay: Literal["auto", "on", "off"]) -> bool:
        """Choose how packed rows are computed, by trial; return whether blocks are to be light."""
        self._change_routers(routing_replay)
        self._attention, self.shares_prefixes = choose_attention(
            self.model,
            self._own_attention,
            wanted=self._trainer.attention,
            longest=self._trainer.max_tokens_per_microbatch,
            half=self._half,
        )
        """The attention, and whether it computes rows with a common beginning as a tree."""
        self.packs = self._attention != ROW_BY_ROW
        """Whether a pass may hold several rows."""
        self._flops = FlopCount.of(self.model)  # needed while `_change_head` runs the model
        self.flops = 0.0
        """The operations of all passes so far, on this rank."""
        self.microbatch_tokens, self._light = self._most_tokens(compute_dtype)
        """The number of packed tokens of one forward; a single longer row may exceed it."""
        self.computed_tokens = self.row_tokens = 0
        """The tokens of all passes so far, on this rank: those computed, and those of all rows."""
        self.fullest_tokens = 0
        """The tokens that the rank with the most computed in each round of these passes, if there
        are several ranks."""
        self._change_head()
        return self._light

    @classmethod
    def load(
        cls,
        model_dir: Path,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        master_dtype: torch.dtype = torch.float32,
        frozen: bool = False,
        trainer: TrainerConfig | None = None,
        adapter: AdapterKeys | None = None,
        seed: int = 0,
        routing_replay: Literal["auto", "on", "off"] = "off",
    ) -> Self:
        """Load the model in `model_dir`, as saved by transformers; a `frozen` one is never trained.
        With an `adapter`, it alone is trained, initialized from `seed`.

        Parameters are kept as `master_dtype`. `compute_dtype` bfloat16 computes the blocks (on a
        CPU, their linear layers) in bfloat16, all else (the head included) in `master_dtype`, and
        reduces gradients in float32. `routing_replay`: see `engine.routing_replay`.

        Raises:
            TrainerError: there is no model that transformers can load and this module can pack.
            ConfigError: a package that the adapter needs is not installed.
        """
        if compute_dtype == "bfloat16":
            _check_bfloat16(world.device)
        try:
            rounds = compute_dtype == "bfloat16" and (frozen or adapter is not None)
            which = partial(in_bfloat16, device=world.device) if rounds else lambda model: ()
            slices, loaded = Slices.load(model_dir, world, dtype=master_dtype, rounded=which)
        except ConfigError as error:
            raise TrainerError(str(error)) from error
        model, added = loaded.model.requires_grad_(not frozen), None
        if adapter is not None:
            with slices.adopting(model):
                added = add_adapter(model, adapter, model_dir=model_dir, seed=seed)
        return cls(
            model,
            world,
            compute_dtype=compute_dtype,
            trainer=trainer,
            adapter=added,
            names=loaded.names,
            routing_replay=routing_replay,
            slices=slices,
        )

    def _most_tokens(self, compute_dtype: str) -> tuple[int, bool]:
        """Return `trainer.max_tokens_per_microbatch`, and whether blocks are `light`.

        On a CPU they are if the activations of so many tokens would need more memory than `_SHARE`
        of the weights, or `_ROOM`, and then a micro-batch has as many tokens as fit. Neither
        changes a result.
        """
        most, trainer = self._trainer.max_tokens_per_microbatch, self._trainer
        learns = any(p.requires_grad for p in self.model.parameters())
        if not learns or trainer.activation_checkpointing or trainer.compile:
            return most, False
        if self.world.device.type != "cpu" or not self.packs:
            return most, False
        weights = sum(p.nbytes for p in self.model.parameters())
        room = max(_SHARE * weights, _ROOM) * (2 if compute_dtype == "bfloat16" else 1)
        segmented = self._attention != self._own_attention
        each, light = activation_bytes(self.model, segmented=segmented)
        if most * each <= room:
            return most, False
        return max(_FEWEST_TOKENS, min(most, int(room / max(1, light)))), True

    def give_back_memory(self) -> None:
        """Return freed memory to the operating system, after a batch of a model whose activations
        are large: rows of all lengths leave gaps in it."""
        if self._light:
            give_back_memory()

    def budget(self, lengths: Sequence[int]) -> int:
        """Return the budget in tokens of a micro-batch of rows of such lengths. A row longer than
        `trainer.max_tokens_per_microbatch`, times the ranks that share it, exceeds it."""
        longest, unit = max(lengths, default=0), self.world.unit
        most = max(self.microbatch_tokens * unit, longest)
        return min(self._trainer.max_tokens_per_microbatch * unit, most)

    def micro_batches(
        self, rows: Sequence[Row], *, least: int = 1
    ) -> Iterator[tuple[list[int], PackedRows]]:
        """Yield the indices of the rows of each micro-batch, and these rows packed as this model
        computes them: with shared beginnings once, or each row by itself, if the model requires it.
        There are `least` micro-batches if they can be smaller then.

        Raises:
            ValueError: a row exceeds the `budget`, or holds tokens that cannot be trained.
        """
        budget = self.budget([len(row) for row in rows])
        share, packs = self.shares_prefixes, self.packs
        return micro_batches(rows, budget, share=share, packs=packs, least=least)

    def wait_for(self, tokens: int) -> None:
        """Count the tokens of the fullest rank."""
        self.fullest_tokens += tokens

    def _change_head(self) -> None:
        """Change the output layer before the model is sharded; for subclasses."""

    def _change_routers(self, wanted: Literal["auto", "on", "off"]) -> None:
        """Let routers replay (`engine.routing_replay`); for subclasses."""

    def outputs(self, packed: PackedRows) -> Tensor:
        """Return outputs [P, …] of the output layer at the predictions, on the model's device.

        Gradients flow unless disabled. Collective: every rank calls this equally often.
        """
        passed = self._flops.of_pass(packed, gradients=torch.is_grad_enabled())
        self.flops += passed / self.world.unit
        self.computed_tokens += packed.tokens.shape[1]
        self.row_tokens += packed.num_row_tokens
        if self.parallel is not None:
            return self.parallel.outputs(packed, self._compute)
        return self._compute(packed)

    def _compute(
        self, packed: PackedRows, rows: Tensor | None = None, pieces: Pieces | None = None
    ) -> Tensor:
        """Return outputs at the predictions, which are at `rows` of all if this rank computes some
        of them only."""
        if self._attention == ROW_BY_ROW:
            return forward_row_by_row(self.model, packed)
        return forward_packed(self.model, packed, segmented=self.is_segmented, pieces=pieces)

    @property
    def is_segmented(self) -> bool:
        """Return whether an attention function gets the boundaries of rows."""
        return self._attention not in (ROW_BY_ROW, self._own_attention)

    @property
    def cuts_vocabulary(self) -> bool:
        """Return whether outputs can be computed for a part of the vocabulary."""
        return False

    def cut_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Compute outputs for a part of the vocabulary; for subclasses."""

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Compute as transformers does while the context is open, for comparison with packing. A
        pack must then hold a single row."""
        if self.parallel is not None:  # no rank has a complete row
            yield
            return
        chosen, self._attention = self._attention, ROW_BY_ROW
        self.model.set_attn_implementation(self._own_attention)
        try:
            yield
        finally:
            self._attention = chosen
            if self.packs:
                self.model.set_attn_implementation(chosen)

    def idle(self) -> Tensor:
        """Return a scalar 0 with zero gradients, to match another rank's extra micro-batch."""
        return self.outputs(_TWO_TOKENS.to(self.world.device)).sum() * 0.0

    def synchronize_gradients(self, last: bool) -> None:
        """Prepare the backward pass of a micro-batch, the `last` one of its minibatch or not: what
        its gradients are reduced over. Copies of the model exchange theirs after the last."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last or self.shards_gradients)
            self.model.set_requires_all_reduce(last)

    def pieces(self) -> list[Piece]:
        """Return the pieces in which engines get this model's trained tensors: the adapter
        (weights/adapter.py) if there is one, or else every tensor of the model's folder. A changed
        model uses its own names, and has tied tensors only once. The same on every rank."""
        if self._pieces is None:
            self._pieces = self._made_pieces()
        return self._pieces

    def _made_pieces(self) -> list[Piece]:
        shapes = {name: cut.shape for name, cut in self._cuts.items()}
        own = {
            n: torch.empty(shapes.get(n, t.shape), dtype=t.dtype, device="meta")
            for n, t in self._trained().items()
        }
        if self.adapter is not None:
            return [Piece(tuple(own), kinds_of(self.adapter.version(own)))]
        if self.names is not None:
            return self.names.pieces(own)
        return [Piece((name,), kinds_of({name: tensor})) for name, tensor in own.items()]

    def gathered(self, owners: Sequence[int] | None = None) -> Iterator[dict[str, Tensor]]:
        """Yield for each of the `pieces` its unsharded tensors, by their names there, on any
        device, to the rank that owns it, and {} to the others. `owners` has the rank of each piece;
        None: rank 0 owns all. The tensors may share memory with the parameters.

        Collective: every rank takes all of them, in step with the others. In addition to the
        shards, only one piece is in memory, and twice while it is converted.
        """
        trained, rank = self._trained(), self.world.rank
        owners = [0] * len(self.pieces()) if owners is None else owners
        gathering = Gathering(self.world)
        for piece, owner in zip(self.pieces(), owners, strict=True):
            own = {
                n: gathering.gather(owner, trained[n], self._cuts.get(n), piece.rows)
                for n in piece.own
            }
            if rank != owner:
                yield {}
            elif self.adapter is not None:
                yield self.adapter.version(own)
            elif self.names is None:
                yield own
            else:
                tensors = self.names.of(own, piece.rows[0] if piece.rows else 0)
                own.clear()  # the next piece is gathered while this one is written
                yield tensors if piece.own else {n: self.names.ignored[n] for n in piece.kinds}
                del tensors
        gathering.finish()

    @property
    def _cuts(self) -> Mapping[str, Cut]:
        return self.parallel.cuts if self.parallel else {}

    def _trained(self) -> dict[str, Tensor]:
        if self.adapter is None:
            return self.tensors()
        self.reshard()
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def rounded_matrices(self) -> frozenset[str]:
        """Return the parameters, by the model's own names, that an engine on a CPU has in bfloat16
        if it computes in it."""
        layers = {id(part) for part in inner_linears(self.model)}
        return frozenset(
            f"{layer}.{name}"
            for layer, module in self.model.named_modules()
            if id(module) in layers
            for name, _ in module.named_parameters(recurse=False)
        )

    def trained_state(self) -> dict[str, Tensor]:
        """Return the tensors of all `pieces`, on the CPU.

        Collective. Every rank takes part, only rank 0 gets the tensors (the others get {}); they
        may share memory with the parameters.
        """
        state: dict[str, Tensor] = {}
        for tensors in self.gathered():
            state |= {name: tensor.cpu() for name, tensor in tensors.items()}
        return state

    def full_state(self) -> Mapping[str, Tensor]:
        """Return the unsharded weights, with an adapter merged: every tensor of the model's folder,
        by its name there. See `trained_state`."""
        state = self.trained_state()
        return self.adapter.merged(state) if self.adapter and state else state

    def exported(self) -> Mapping[str, Tensor]:
        """Return `full_state`, which is never in memory: rank 0 reads each tensor once, in the
        order of the mapping. The other ranks return once it has read the last one.

        Collective.
        """
        if self.adapter is not None:
            return self.full_state()
        if self.world.rank == 0:
            return _OnePass(self.pieces(), self.gathered())
        for _ in self.gathered():
            pass
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the shards of parameters and saved buffers, by the model's own names."""
        self.reshard()
        saved = self.model.state_dict().keys()
        buffers = {name: b for name, b in self.model.named_buffers() if name in saved}
        return {**dict(self.model.named_parameters()), **buffers}

    def reshard(self) -> None:
        """Free gathered parameters: a forward without a backward leaves them in memory that the
        next gathering or checkpoint frees, so returned tensors must come from the shards."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _check_bfloat16(device: torch.device) -> None:
    """Check that a rank's own GPU, on whichever machine, has arithmetic in bfloat16; else raise
    TrainerError."""
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < (8, 0):
        raise TrainerError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}, "
            "and bfloat16 needs 8.0; use --trainer.dtype=float32"
        )


class _OnePass(KnownKinds):
    """The tensors of pieces, each gathered when it is read, in their order."""

    def __init__(self, pieces: Sequence[Piece], gathered: Iterator[dict[str, Tensor]]) -> None:
        self._kinds = {name: kind for piece in pieces for name, kind in piece.kinds.items()}
        self._gathered = gathered
        self._present: dict[str, Tensor] = {}
        super().__init__(self._kinds, self._next)

    def kinds(self) -> dict[str, Kind]:
        return self._kinds

    def _next(self, name: str) -> Tensor:
        while name not in self._present:
            self._present = dict(next(self._gathered))
        return self._present.pop(name)
