"""The training of a low-rank adapter (LoRA) with frozen base weights, through peft.

keys.py     the section `lora`
adapter.py  the adapter of a model, on its linear layers
experts.py  the adapters of experts
"""
