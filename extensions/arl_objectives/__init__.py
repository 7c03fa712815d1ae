"""The extension of optional parts of the objective: one file an algorithm, its keys beside it.

curriculum.py       the choice of tasks by measured rewards (`rollout.curriculum`)
served_teachers.py  the log-probs of teachers that are served (`algo.teacher.models`)
"""
