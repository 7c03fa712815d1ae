"""Attention over all packed rows at once, on GPUs: `trainer.attention` varlen.

attention.py  the attention, by torch's kernels for rows of variable length
kind.py       its place in the registry, and the trial of its gradients
"""
