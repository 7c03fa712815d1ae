"""vLLM as the engine: what is started, what runs inside its processes, what is checked.

build.py     which vLLM an interpreter has, and whether this package can drive it
command.py   the command line and environment of a server
checks.py    is a server that runs already what the configuration asks for?
plugin.py    loaded by vLLM itself in each of its processes (entry point vllm.general_plugins)
staging.py   weights on their way into private memory, checked, while the model samples
transfer.py  vLLM's weight-transfer backends arl-shm and arl-gloo on top of it
worker.py    what a worker answers about its staging

The first three run beside `arl train` and import neither torch nor vllm; the others run inside
vLLM, in an environment that has none of this package's dependencies.
"""
