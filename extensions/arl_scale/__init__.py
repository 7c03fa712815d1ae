"""The extension for engines and rollout workers that come and go: `arl engines`, `arl workers`, and
`arl rollout`, the process of a worker."""
