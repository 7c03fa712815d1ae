"""The policy versions on their way from trainer to engines.

files.py         one version as a folder of checksummed parts: its index and its readers
parts.py         the writing of a version, by several processes, without what did not change
source.py        a model folder loaded completely, and its tensors under the folder's names
adapter.py       one version as a LoRA adapter, and the merge into its base weights
publish.py       one version for every engine with a short pause: stage, then swap
transport.py     the interface of a transport, the state of one publication, and the transport of
                 files in shared memory (storage/weights_folder.py)
engine_routes.py  the weight-update routes of one engine
receivers.py     the contract of a kind of engine that gets versions: its routes and transports
gloo.py          transport: a broadcast over sockets (broadcast.py: the group, on both sides)

Kinds of engines may have routes and transports of their own (arl_sglang/weight_routes.py,
arl_vllm/native.py).
"""
