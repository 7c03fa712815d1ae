"""The objective as pure functions: tensors in, tensors out.

    advantages.py   rewards -> one advantage per episode
    losses.py       log-probs -> behavior weights; PPO, decoupled or naive; GSPO, REINFORCE
    corrections.py  the control of outliers among behavior weights; behavior.py: their logs
    inputs.py       what parts of the objective get and return: of a batch, of its tokens
    own_loss.py     a user's own loss, as module:function
    own_advantage.py  a user's own advantages, as module:function
    terms.py        the contract of a term of the objective
    own_parts.py    the trial of users' functions and terms before they train
    aggregation.py  the exact weight of each token's loss
    balance.py      lengths -> even parts, or bins under a budget (no torch)
    dealing.py      episodes of a minibatch -> ranks (no torch)
    packing.py      rows -> one padding-free sequence

Legend: [E] episodes of the batch, [R] rows, [N] trained tokens (loss_mask True), [T] packed tokens.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .advantages import Moments as Moments
    from .advantages import episode_advantages as episode_advantages
    from .advantages import moments_of as moments_of
    from .advantages import one_each as one_each
    from .aggregation import Tally as Tally
    from .aggregation import aggregation_weights as aggregation_weights
    from .aggregation import tally_mismatch as tally_mismatch
    from .aggregation import tally_weights as tally_weights
    from .balance import fill_bins as fill_bins
    from .behavior import LogWeights as LogWeights
    from .behavior import row_means as row_means
    from .behavior import row_sums as row_sums
    from .behavior import row_sums_to_come as row_sums_to_come
    from .corrections import Correction as Correction
    from .corrections import inside as inside
    from .dealing import deal as deal
    from .inputs import BehaviorWeights as BehaviorWeights
    from .inputs import LossTokens as LossTokens
    from .inputs import Ranks as Ranks
    from .inputs import TokenBatch as TokenBatch
    from .inputs import TokenObjective as TokenObjective
    from .losses import behavior_weights as behavior_weights
    from .losses import finite_logprobs as finite_logprobs
    from .losses import number_of_batch as number_of_batch
    from .losses import policy_loss as policy_loss
    from .losses import unbounded as unbounded
    from .own_advantage import own_advantages as own_advantages
    from .own_loss import needs as needs
    from .own_parts import check_own_parts as check_own_parts
    from .packing import PackedRows as PackedRows
    from .packing import micro_batches as micro_batches
    from .packing import pack_rows as pack_rows
    from .prefixes import fill_shared as fill_shared
    from .prefixes import num_distinct as num_distinct
    from .rounding import relative_difference as relative_difference
    from .routing import Routers as Routers
    from .routing import is_experts as is_experts
    from .routing import routers_of as routers_of
    from .terms import Term as Term
    from .terms import all_terms as all_terms
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
