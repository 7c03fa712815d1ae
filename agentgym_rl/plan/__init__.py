"""`arl plan`: what a run would do, before it is paid for.

clock.py        an event loop whose time is virtual: it jumps to whatever comes next
cores.py        processors that processes share
rates.py        how fast engines, trainer and the rest are: measured, or of a model's size (gpus.py)
lengths.py      how long episodes are: drawn, or recorded (calibration.py)
engine.py       an engine: slots, decode steps, prefills, KV memory, updates
fleet.py        several, chosen among by the gateway's own rule, given versions as runs do
trainer.py      a trainer: micro-batches as real ones are packed, passes, publications
simulation.py   all of it around the real rollout, buffer and controller (prediction.py: what of it)
search.py       other splits, bounds and sizes, tried one after the other

What decides about groups is not modelled but run: `Rollout`, `FinishedGroups`, `Buffer` and
`Controller` are those of `arl train`, and so are `split_batch`, `fill_bins` and `Replicas`.
"""
