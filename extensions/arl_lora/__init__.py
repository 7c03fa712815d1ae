"""The training of a low-rank adapter (LoRA) with frozen base weights, through peft.

keys.py     the section `lora`
adapter.py  the adapter on the linear layers of a model
"""
