"""A run's metrics in experiment trackers: TensorBoard, Weights & Biases, trackio.

`metrics.jsonl` is the record; a tracker is a copy of it for those who like to look there.
"""

from .trackers import Tracker, Trackers, open_trackers

__all__ = ["Tracker", "Trackers", "open_trackers"]
