"""The extension of optional parts of the objective: one file for each algorithm.

keys/               their keys, a file for each algorithm
kl.py               the divergence from a reference model (`algo.kl`); reference.py: the model
small_terms.py      imitation, entropy and a negative control (`algo.positive_nll`, …)
losses.py           policy losses beside PPO's (`algo.loss`)
rewards.py          the shaping of rewards, and several of them (`algo.reward`)
clamp.py, sequence_mask.py, moment_mask.py  corrections of behavior weights, with their keys
covariance.py       tokens that stand out by a covariance (`algo.covariance`)
critic.py           the value model, and its training (`algo.baseline` "critic"); values.py: GAE
curriculum.py       the selection of tasks by measured rewards (`rollout.curriculum`)
teachers.py         the divergence from teachers (`algo.teacher`); taught.py: their log-probs
served_teachers.py  the log-probs of teachers that are served (`algo.teacher.models`)
"""
