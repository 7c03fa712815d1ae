"""The extension that predicts the speed of a run: `arl plan`."""
