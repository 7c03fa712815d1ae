"""Environments behind an OpenEnv server: `openenv:http://localhost:8000`.

env      the environment: replies or tool calls to actions, observations to messages
session  one WebSocket, one session of the server
servers  the servers, their sessions, and the episodes that wait for one
"""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="openenv-v0",
    entry_point="arl_envs.openenv.env:OpenEnvEnv",
    argument="url",
    description="an environment behind an OpenEnv server, as openenv:http://localhost:8000",
)
