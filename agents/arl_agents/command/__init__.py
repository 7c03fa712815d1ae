"""An agent that runs any program: environment variables tell it the model, and MCP gives it the
environment.

    run ──► program.py     the program: start, output and end, child processes included
        ├─► variables.py   the environment variables it gets
        └─► tool_server.py the environment's tools, as an MCP server of this episode alone

`agent.py` defines the steps. Offering tools needs the extra `mcp`.
"""

from agentgym_rl.gym.specs import Spec

SPEC = Spec(
    id="command-v0",
    kind="agent",
    entry_point="arl_agents.command.agent:Command",
    description="Any program, in any language.",
)
