"""Measurements of training: the norms of each layer, and the use of the devices of ranks.

keys.py      the keys `trainer.layer_metrics` and `trainer.peak_tflops`
layers.py    the norms of gradients and updates by layer
devices.py   teraFLOP/s, their share of the device's peak, shared prefixes, memory
"""
