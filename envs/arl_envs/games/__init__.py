"""Games of two seats: `tictactoe` and `kuhn`.

tictactoe   tic-tac-toe, with a perfect player, one that errs, and a random one
kuhn        Kuhn poker, with an equilibrium player and a random one
"""

from agentgym_rl import EnvSpec

TICTACTOE = EnvSpec(
    id="tictactoe-v0",
    entry_point="arl_envs.games.tictactoe:TicTacToe",
    description="tic-tac-toe against a player of the game, or with an agent at each seat",
)
KUHN = EnvSpec(
    id="kuhn-v0",
    entry_point="arl_envs.games.kuhn:KuhnPoker",
    description="Kuhn poker against a player of the game, or with an agent at each seat",
)
