"""The extension of callbacks: functions of the user's that run at each step, episode and evaluation
of a run (`train(callbacks=...)`, `logging.callbacks`).

keys.py       their key
callbacks.py  the calls, and `StopTraining`
"""
