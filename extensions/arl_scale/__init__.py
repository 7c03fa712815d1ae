"""The extension for runs on several machines, or with processes that come and go: the clusters
`ray` and `slurm`; `arl engines`, `arl workers`, and `arl rollout`, the process of a worker."""
