"""The rollout workers: processes that play the groups of a run (`rollout.workers`).

workers.py    their lives; elastic.py: workers that join and leave
leases.py     the groups that they play; api.py: over HTTP
process.py    the worker itself; client.py: its connection
"""

IMPORTS = ("arl_scale.workers.process", "agentgym_rl.gateway.client", "openai.types.chat")
"""The modules that workers may be forked from."""
