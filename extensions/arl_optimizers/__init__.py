"""Optimizers for `trainer.optimizer` whose states take less memory.

adamw.py  AdamW with states in bfloat16
"""

STATE_BYTES = {"arl_optimizers.adamw:StochasticAdamW": 4.0}
"""The bytes of the state of a number, by the path of an optimizer."""
