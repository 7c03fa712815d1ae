"""Measurements of a run: the norms of each layer, the use of the devices of ranks, the canary of
the gateway, and the warnings about metrics.

keys.py      the keys `trainer.layer_metrics`, `trainer.peak_tflops`, `gateway.canary_fraction`
layers.py    the norms of gradients and updates by layer
devices.py   teraFLOP/s, their share of the device's peak, shared prefixes, memory
canary.py    prompts of turns against a rendering of the whole conversation
metric_warnings.py   cut replies, and a policy that is broken, repeats itself or moves too far
"""
