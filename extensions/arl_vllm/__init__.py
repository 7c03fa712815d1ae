"""The extension of vLLM as the engine: its start, its plugin and its weight routes.

command.py   the vLLM of an interpreter, checked; the command line and environment of a server
plugin.py    loaded by vLLM itself in each of its processes (entry point vllm.general_plugins)
swap.py      the exchange of weights in a pause
staging.py   weights on their way into private memory, checked, while the model samples
native.py    the publication through vLLM's own weight-transfer routes
transfer.py  vLLM's weight-transfer backends arl-shm and arl-gloo on top of it

The first one runs in the process of `arl train` and imports neither torch nor vllm; the others run
inside vLLM, in an environment that has none of this package's dependencies.
"""
