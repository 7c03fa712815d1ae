"""When what happened in a run, for Perfetto and chrome://tracing (`arl timeline`)."""

from .phases import PhasesFile, StepPhases
from .run import write_timeline

__all__ = ["PhasesFile", "StepPhases", "write_timeline"]
