"""Policy versions on their way from trainer to engine.

files.py     one version as a checksummed safetensors file
folder.py    the run's folder in shared memory, and the lock that says it is alive (no torch)
publish.py   hand a file to every engine with a short pause (no torch)
"""
