"""The experiment trackers of a run's metrics: TensorBoard, Weights & Biases, trackio.

`metrics.jsonl` is the record; a tracker is a copy of it, to be viewed with the tracker's tools.
"""

from .trackers import Tracker, Trackers, open_trackers

__all__ = ["Tracker", "Trackers", "open_trackers"]
