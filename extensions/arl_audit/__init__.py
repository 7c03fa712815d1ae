"""The extension that verifies and exports what runs recorded: `arl audit`, `ledger`, `replay`,
`reverify` and `export`."""

BUILDS_ON = ("arl_endpoints",)
"""The extension whose relay serves the agents of `--oracle`."""
