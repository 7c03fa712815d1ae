"""vLLM as the engine: its start, its plugin, its checks.

command.py   the vLLM of an interpreter, checked; the command line and environment of a server
checks.py    the check that a running server fits the configuration
plugin.py    loaded by vLLM itself in each of its processes (entry point vllm.general_plugins)
swap.py      the exchange of weights in a pause
staging.py   weights on their way into private memory, checked, while the model samples
transfer.py  vLLM's weight-transfer backends arl-shm and arl-gloo on top of it

The first two run beside `arl train` and import neither torch nor vllm; the others run inside
vLLM, in an environment that has none of this package's dependencies.
"""
