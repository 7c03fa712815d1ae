"""The trainer: one process per rank, FSDP2 from the first rank on.

main.py         the loop: batch in, step, weights out, report
client.py       the client of the controller: batches in, reports out
step.py         one training batch: proximal pass, minibatches, epochs
shard_tensors.py  a rank's rows as flat arrays of trained tokens, and passes over them
packed.py       a model sharded over the ranks, fed with packed rows
policy.py       the trained model, and its log-probs
trained_term.py a term with a model of its own, such as a critic
lora.py         an adapter that is trained instead of all weights
sharding.py     the placement of parameters and activations
attention.py    attention within packed rows
optim.py        AdamW, Muon, schedules, clipping, norms by layer
publication.py  the publication of versions, and a hash of their parameters
checkpoint.py   checkpoints, saved and loaded with torch's distributed checkpoint
trial.py        a trial of the model before a run starts anything
export.py       the export to a folder that `from_pretrained` loads
recompute.py    the computations of audits, after a run
world.py        the ranks, and the messages between them
usage.py        the time of each phase, and the use of the device
"""
