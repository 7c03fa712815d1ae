"""Any program as an agent: it talks to the model by environment variables, and to the
environment by MCP.

    run ──► program.py     the program: started, heard, ended, with everything it started
        ├─► variables.py   what it is told, and what it is not
        └─► tool_server.py the environment's tools, as an MCP server of this episode alone

`agent.py` says what is a step. Offering tools needs the extra `mcp`.
"""

from agentgym_rl.gym.specs import Spec

SPEC = Spec(
    id="command-v0",
    kind="agent",
    entry_point="arl_agents.command.agent:Command",
    description="Any program, in any language.",
)
