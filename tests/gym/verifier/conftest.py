"""The functions that the tests call, as a module that the pool's processes can import."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
