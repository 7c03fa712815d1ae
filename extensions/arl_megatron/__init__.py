"""A trainer backend with the models of Megatron-Core: `trainer.backend = "megatron"`. Experimental:
dense Qwen3 in float32, with data and tensor parallelism; run on a CPU alone so far.

kind.py     the registered kind
layout.py   the parameters of a `GPTModel`, and the tensors of the model's folder
model.py    the model over packed rows
trainer.py  its training, checkpoints
cpu.py      stand-ins for what Megatron-Core asks of CUDA
"""

BUILDS_ON = ("arl_scale",)
