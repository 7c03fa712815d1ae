"""The code that runs in the Python with verifiers; it imports nothing of ours.

calls  the other process's calls: the tasks of a taskset, a first message, the next turn
plays  an episode whose agent is in the other process
"""
