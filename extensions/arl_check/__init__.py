"""The extension for authors of environments: `arl check` and `arl new`."""
