"""The gateway of tests/kit, and a path to what files of tests here share."""

import sys
from pathlib import Path

from tests.kit.stage import chat, spell, stage, thinker, words

__all__ = ["chat", "spell", "stage", "thinker", "words"]

sys.path.insert(0, str(Path(__file__).parent))
