"""When what happened in a run, for Perfetto and chrome://tracing (`arl timeline`)."""

from .phases import PhasesFile
from .run import write_timeline

__all__ = ["PhasesFile", "write_timeline"]
