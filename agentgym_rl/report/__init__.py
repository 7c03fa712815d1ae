"""The views of a run: progress while it runs, and texts and a picture when it ends."""
