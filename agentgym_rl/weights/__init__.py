"""Policy versions on their way from trainer to engine.

files.py         one version as a checksummed safetensors file
source.py        a model folder loaded whole, and its tensors under its own names
adapter.py       one version as a LoRA adapter, and the weights it makes of its base
folder.py        the run's folder in shared memory, and the lock that says it is alive (no torch)
publish.py       hand a version to every engine with a short pause: stage, then swap
publication.py   what a transport has to do, and who still takes part
remote.py        the weight-update routes of one engine (wire.py: one bounded HTTP call)
shm.py           transport: files.py in folder.py
gloo.py          transport: a broadcast over sockets (broadcast.py: the group, on both sides)
vllm_native.py   transports of vLLM's own, nccl and ipc (vllm_client.py: what they talk to)
"""
