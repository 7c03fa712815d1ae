"""Looking at a run: progress while it runs, a picture when it ends."""
