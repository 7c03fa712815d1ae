"""For all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("here", deadline=None)
settings.load_profile("here")


def shared_data() -> Path:
    """The folder of public data sets (gsm8k/, code/): ARL_SHARED_DATA, or ../shared/data."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("ARL_SHARED_DATA") or beside)
    if not path.is_dir():
        pytest.skip(f"no data sets in {path}: set ARL_SHARED_DATA")
    return path
