"""Planted environments are importable, here and in the processes that checks start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
