"""The extension that verifies and exports what runs recorded: `arl audit`, `ledger`, `replay`,
`reverify` and `export`."""
