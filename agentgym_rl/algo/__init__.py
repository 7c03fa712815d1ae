"""The objective as pure functions: tensors in, tensors out.

    shaping.py      rewards as they were paid -> as the advantages see them
    advantages.py   rewards and groups -> one advantage per episode
    critic.py       token rewards and a critic's values -> advantages by GAE; the critic's loss
    corrections.py  proximal and behavior log-probs -> behavior weights
    aggregation.py  what each token's loss counts, exactly
    losses.py       PPO, decoupled or naive; GSPO, CISPO, REINFORCE, DPPO
    loss_tokens.py  what a loss is given, and what it returns
    own_loss.py     a loss that somebody else wrote, as module:function
    kl.py           divergence from a reference model, in the loss or as a reward
    mismatch.py     how far trainer and engine log-probs are apart, by staleness
    balance.py      lengths -> even parts, or bins under a budget (no torch)
    packing.py      rows -> one padding-free sequence

Legend: [E] episodes of the batch, [R] rows, [N] trained tokens (loss_mask True), [T] packed tokens.
"""
