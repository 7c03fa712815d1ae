"""The extension for self-play: the models beside the policy that play seats of its games, and the
league of its past versions (`rollout.seats`)."""
