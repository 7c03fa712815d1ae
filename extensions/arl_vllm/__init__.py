"""The extension of vLLM as the engine: its start, its plugin and its weight routes.

build.py     the vLLM of an interpreter, checked; what its releases can do
command.py   the command line and environment of a server
checks.py    the check of a server that runs already
client.py    the engine contract over vLLM's routes
plugin.py    loaded by vLLM itself in each of its processes (entry point vllm.general_plugins)
swap.py      the exchange of weights in a pause
staging.py   weights on their way into private memory, checked, while the model samples
native.py    the publication through vLLM's own weight-transfer routes
transfer.py  vLLM's weight-transfer backends arl-shm and arl-gloo on top of it

The first four run beside `arl train` and import neither torch nor vllm; the others run inside
vLLM, in an environment that has none of this package's dependencies.
"""

BUILDS_ON = ("arl_gloo",)
"""The other extensions that this one imports: the group of the transport `gloo`."""
