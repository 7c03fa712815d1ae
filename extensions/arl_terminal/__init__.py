"""The comfort of the command line (docs/terminal.md): configuration files in YAML, colour, a `.env`
file, hints for the names that other programs use, and shell completion."""
