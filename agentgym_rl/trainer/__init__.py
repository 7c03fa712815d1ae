"""The trainer: one process per rank, FSDP2 from the first rank on.

main.py         the loop: batch in, step, weights out, report
client.py       asks the controller for batches, reports steps
step.py         one training batch: proximal pass, minibatches, epochs
objective.py    what its policy loss is made of
passes.py       passes over a rank's rows that all ranks make in step
tokens.py       a rank's rows as flat arrays of trained tokens
packed.py       a model over the ranks, fed packed rows
policy.py       the one that is trained, and its log-probs
critic.py       the one that says what is to come of tokens, and how it learns
lora.py         an adapter that is trained in the place of all weights
head.py         log-probs a few tokens at a time
sharding.py     where parameters and activations are
attention.py    attention within packed rows
optim.py        AdamW, schedules, clipping
checkpoint.py   saved and loaded with torch's distributed checkpoint
trial.py        a model tried before a run starts anything
export.py       a folder `from_pretrained` loads
world.py        the ranks, and what they tell each other
phases.py       who spent which time on what
"""
