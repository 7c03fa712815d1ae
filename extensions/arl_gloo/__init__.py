"""The transport `gloo` (`weights.transport`): policy versions over sockets, without files.

transport.py  the transport: a broadcast from the trainer to all workers of all engines
broadcast.py  the group that broadcasts, on both sides

Of kinds of engines, arl_vllm and arl_sglang have workers that join such a group.
"""
