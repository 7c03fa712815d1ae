"""The objective as pure functions: tensors in, tensors out.

    advantages.py   rewards, shaped -> one advantage per episode
    losses.py       log-probs -> behavior weights; PPO, decoupled or naive; GSPO, CISPO, SAPO, ...
    own_loss.py     the input and output of a loss; a user's own loss, as module:function
    own_advantage.py  the batch that parts of the objective get; a user's own advantages
    terms.py        the contract of a term; built_in_terms.py has ours
    own_parts.py    the trial of users' functions and terms before they train
    aggregation.py  the exact weight of each token's loss
    kl.py           divergence from a reference model, in the loss or as a reward; tokens that stand
                    out in the batch
    balance.py      lengths -> even parts, or bins under a budget (no torch)
    packing.py      rows -> one padding-free sequence

Legend: [E] episodes of the batch, [R] rows, [N] trained tokens (loss_mask True), [T] packed tokens.
"""
