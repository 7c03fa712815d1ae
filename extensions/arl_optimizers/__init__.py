"""Optimizers for `trainer.optimizer` beside AdamW.

adamw.py       AdamW with states in bfloat16
eight_bits.py  AdamW with states of 8 bits, torchao's
muon.py        Muon
keys.py        the key `trainer.momentum`; the check that torchao is there
"""

STATE_BYTES = {"arl_optimizers.adamw:StochasticAdamW": 4.0}
"""The bytes of the state of a number, by the path of an optimizer."""
