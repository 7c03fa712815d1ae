"""The code of the verifier's own processes: the zygote, the workers it forks, their locks."""
