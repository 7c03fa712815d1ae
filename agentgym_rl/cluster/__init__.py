"""Who runs where: `local` on this machine, `ray` on the nodes of a cluster, `slurm` starts that."""
