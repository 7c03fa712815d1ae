"""The extension for self-play: games of several seats, the other models that play seats, and the
league of the policy's past versions (`rollout.seats`). The contract of a game, `MultiSeatEnv`, is
in `agentgym_rl.gym.seats`."""
