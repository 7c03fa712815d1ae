"""The extension of optional parts of the objective: one file for each algorithm, with its keys.

covariance.py       tokens that stand out by a covariance (`algo.covariance`)
critic.py           the value model, and its training (`algo.baseline` "critic")
curriculum.py       the selection of tasks by measured rewards (`rollout.curriculum`)
teachers.py         the divergence from teachers (`algo.teacher`)
served_teachers.py  the log-probs of teachers that are served (`algo.teacher.models`)
"""
