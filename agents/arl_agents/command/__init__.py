"""An agent that runs any program: environment variables name the model, and MCP offers the tools of
the environment.

    run ──► program.py     the program: start, output and end, child processes included ├─►
        presets.py     the settings with which Claude Code, Codex, opencode and others start ├─►
        variables.py   the environment variables it gets ├─► tool_server.py the environment's tools,
        as an MCP server of this episode alone └─► inside.py      instead of these: the program in
        the environment's sandbox

`folder.py` installs programs for sandboxes.

`agent.py` defines the steps. Offering tools needs the extra `mcp`.
"""

from agentgym_rl.gym import Spec

SPEC = Spec(
    id="command-v0",
    kind="agent",
    entry_point="arl_agents.command.agent:Command",
    argument="preset",
    description="Any program, in any language; command:claude-code and others: known programs.",
)
