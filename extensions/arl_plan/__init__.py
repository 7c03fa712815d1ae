"""The extension that predicts a run before it is started: `arl plan`.

clock.py        an event loop with virtual time, which jumps to the next event; shared processors
rates.py        speeds of engines, trainer etc.: measured, or from a model's size and GPU
calibration.py  rates and episodes of a recorded run
episodes.py     lengths of episodes, drawn or recorded, and episodes in virtual time
engine.py       engines: slots, decode steps, KV memory; chosen and updated as in real runs
trainer.py      a trainer: micro-batches packed as real ones, passes, publications
simulation.py   these parts around the real rollout, buffer and controller and their result
memory.py       what ranks, engines and hosts hold (`arl plan --memory`); anatomy.py, memory_plan.py
search.py       other splits, bounds and sizes, tried one after the other

The decisions about groups are not modelled: `Rollout`, `OpenGroups`, `FinishedGroups`,
`Buffer` and `Controller` are those of `arl train`, and so are `shards_of`, `fill_bins` and
`Replicas`.
"""

BUILDS_ON = ("arl_embedded", "arl_meters", "arl_optimizers", "arl_scale")
"""The extension whose engine is measured where a model runs on this machine's CPU, those whose
norms by layer and optimizers need memory, and the one that adapts the number of concurrent groups,
in virtual time too."""
