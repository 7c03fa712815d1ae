"""The trainer: one process per rank, FSDP2 from the first rank on.

main.py         the loop: batch in, step, weights out, report
client.py       asks the controller for batches, reports steps
step.py         one training batch: proximal pass, minibatches, epochs
tokens.py       a rank's rows as flat arrays of trained tokens
policy.py       the sharded model and its log-probs
attention.py    attention within packed rows
optim.py        AdamW, schedules, clipping
checkpoint.py   saved and loaded with torch's distributed checkpoint
export.py       a folder `from_pretrained` loads
world.py        the ranks, and what they tell each other
phases.py       who spent which time on what
"""
