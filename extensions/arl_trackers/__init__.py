"""The extension of experiment trackers: copies of a run's metrics in TensorBoard, Weights & Biases,
trackio, and trackers of other packages (`logging.trackers`).

keys.py      their keys
trackers.py  the trackers of a run, and our own
"""
