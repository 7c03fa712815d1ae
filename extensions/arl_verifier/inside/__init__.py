"""The code of the verifier's own processes: the fork server, the workers it forks, their locks."""
