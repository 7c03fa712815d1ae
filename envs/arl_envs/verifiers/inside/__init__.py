"""Code that runs in the Python that has verifiers, and imports nothing of ours.

calls  what the other process may ask for: the tasks of a taskset, a first message, the next turn
plays  an episode whose agent is somebody else's
"""
