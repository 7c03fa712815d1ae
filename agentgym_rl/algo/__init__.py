"""The objective as pure functions: tensors in, tensors out.

    advantages.py   rewards and groups -> one advantage per episode
    corrections.py  proximal and behavior log-probs -> behavior weights
    losses.py       PPO, decoupled or naive, and its exact aggregation
    mismatch.py     how far trainer and engine log-probs are apart, by staleness
    balance.py      lengths -> even parts, or bins under a budget (no torch)
    packing.py      rows -> one padding-free sequence

Legend: [E] episodes of the batch, [R] rows, [N] trained tokens (loss_mask True), [T] packed tokens.
"""
