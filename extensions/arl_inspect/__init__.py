"""The extension of the inspector: `arl inspect` and `arl timeline`."""
