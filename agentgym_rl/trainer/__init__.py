"""The trainer: one process per rank, FSDP2 from the first rank on.

main.py         a rank: the commands train, publish, checkpoint, export
server.py       the HTTP of these commands
step.py         one training batch: proximal pass, minibatches, epochs
shard_tensors.py  a rank's rows as flat arrays of trained tokens, and passes over them
packed.py       a model sharded over the ranks, fed with packed rows
policy.py       the trained model, and its log-probs
model_term.py   the contract of a term with models of its own; reference.py is one
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
