"""The extension for episodes that other programs play: `arl serve`."""
