"""The tools of an MCP server (Model Context Protocol), added to those of any environment.

    make("reward:mine:score", data="rows.jsonl", wrappers=[{
        "entry_point": "arl_envs.mcp:McpTools", "kwargs": {"command": ["python", "server.py"]}}])

`wrapper.py` routes the calls, `server.py` is the connection to a server over stdio or HTTP and
converts tools and results to the format of the OpenAI API, `child.py` is the process of a stdio
server. Needs the extra `mcp`.
"""

from .wrapper import McpTools

__all__ = ["McpTools"]
