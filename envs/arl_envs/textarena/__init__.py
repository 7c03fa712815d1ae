"""The games of TextArena: `textarena:TicTacToe-v0`."""

from agentgym_rl import EnvSpec

SPEC = EnvSpec(
    id="textarena-v0",
    entry_point="arl_envs.textarena.env:TextArenaEnv",
    argument="id",
    description="a game of TextArena, with a seat for each player, as textarena:TicTacToe-v0",
)
