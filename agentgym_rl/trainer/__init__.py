"""The trainer: one process per rank, FSDP2 from the first rank on.

main.py         a rank: the commands train, publish, checkpoint, export
server.py       the HTTP of these commands
backend.py      the contract of a library that trains
step.py         one training batch: proximal pass, minibatches, epochs
shard_tensors.py  a rank's rows as flat arrays of trained tokens, and passes over them
packed.py       a model sharded over the ranks, fed with packed rows
policy.py       the trained model, and its log-probs
model_term.py   the contract of a term with models of its own
adapter.py      the contract of an adapter, which is trained in place of all weights
model_parallel.py  the contract of ranks that compute the same rows together
slices.py       a rank's slices of a model that is loaded, and trials with it
sharding.py     the placement of parameters and activations
attention.py    attention within packed rows
optim.py        AdamW, schedules, clipping
publication.py  the publication of versions, and a hash of their parameters
checkpoint.py   checkpoints, saved and loaded with torch's distributed checkpoint
export.py       the export to a folder that `from_pretrained` loads
world.py        the ranks, and the messages between them
measurement.py  the contract of measurements, whose numbers are metrics
usage.py        the time of each phase, and the operations of passes
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adapter import Adapter as Adapter
    from .adapter import add_adapter as add_adapter
    from .attention import GpuAttention as GpuAttention
    from .attention import chunk_of as chunk_of
    from .attention import refuse_variants as refuse_variants
    from .attention import segment_attention as segment_attention
    from .checkpoint import Checkpoints as Checkpoints
    from .checkpoint import load_checkpoint as load_checkpoint
    from .export import export_checkpoint as export_checkpoint
    from .export import export_model as export_model
    from .export import export_policy as export_policy
    from .launch import rank_environment as rank_environment
    from .launch import rank_imports as rank_imports
    from .launch import trainer_processes as trainer_processes
    from .measurement import Measurement as Measurement
    from .model_parallel import WHOLE as WHOLE
    from .model_parallel import Compute as Compute
    from .model_parallel import Cut as Cut
    from .model_parallel import Divisible as Divisible
    from .model_parallel import Vocabulary as Vocabulary
    from .model_term import Loading as Loading
    from .model_term import ModelTerm as ModelTerm
    from .objective import RankBatch as RankBatch
    from .optim import adamw as adamw
    from .optim import groups_of as groups_of
    from .optim import learning_rate as learning_rate
    from .optim import make_optimizer as make_optimizer
    from .optim import make_state as make_state
    from .optim import set_learning_rate as set_learning_rate
    from .optim import sum_of_squares as sum_of_squares
    from .optim import take_step as take_step
    from .optim import trained as trained
    from .packed import WHOLE_GRADIENT as WHOLE_GRADIENT
    from .packed import PackedModel as PackedModel
    from .packing_trial import pack_tokens as pack_tokens
    from .policy import KEPT_BYTES as KEPT_BYTES
    from .policy import Policy as Policy
    from .policy import PolicyBase as PolicyBase
    from .policy import default_chunk as default_chunk
    from .shard_tensors import MicroBatch as MicroBatch
    from .shard_tensors import ShardTokens as ShardTokens
    from .shard_tensors import accumulate as accumulate
    from .shard_tensors import frozen_pass as frozen_pass
    from .shard_tensors import in_rounds as in_rounds
    from .sharding import blocks_of as blocks_of
    from .sharding import local as local
    from .slices import Slices as Slices
    from .spans import Pieces as Pieces
    from .spans import Spans as Spans
    from .step import Stepper as Stepper
    from .step import make_stepper as make_stepper
    from .trainer import Trainer as Trainer
    from .usage import Phases as Phases
    from .world import World as World
    from .world import join_world as join_world
    from .world import open_mesh as open_mesh
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
