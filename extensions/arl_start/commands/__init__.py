"""The commands of the extension."""
