"""The tools of an MCP server (Model Context Protocol), added to those of any environment.

    make("reward:mine:score", data="rows.jsonl", wrappers=[{
        "entry_point": "arl_envs.mcp:McpTools", "kwargs": {"command": ["python", "server.py"]}}])

`wrapper.py` says which calls go there, `server.py` is a server as we see it, over stdio or HTTP,
`child.py` the process of one over stdio, `texts.py` its tools and results in OpenAI's words. Needs
the extra `mcp`.
"""

from .wrapper import McpTools

__all__ = ["McpTools"]
