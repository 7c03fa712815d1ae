"""The processes of a run: `local` on this machine, `ray` on a cluster, `slurm` to start Ray."""
