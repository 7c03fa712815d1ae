"""For all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("here", deadline=None)
settings.load_profile("here")

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data() -> Path:
    """Return the folder with gsm8k/ and code/; a test without it is skipped.

    `ARL_SHARED_DATA`, or else `../shared/data` beside the repository.
    """
    folder = Path(os.environ.get("ARL_SHARED_DATA") or _BESIDE)
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; ARL_SHARED_DATA says where they are")
    return folder
