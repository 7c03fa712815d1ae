"""What is tried whole only when asked for (`ARL_EXHAUSTIVE=1`), and by samples otherwise."""

import os

EXHAUSTIVE = os.environ.get("ARL_EXHAUSTIVE") == "1"
"""Whether tests try every case; each that does not says so in its docstring."""
