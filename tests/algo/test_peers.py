"""Losses, gradients and advantages beside those of AReaL, NeMo RL, TRL and verl: the comparison of
scripts/peers, whose complete results are in docs/data/peers.txt, on a few random batches."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.exhaustive import EXHAUSTIVE

PEERS = os.environ.get("ARL_OBJECTIVES", "")


@pytest.mark.skipif(not PEERS, reason="`make test-peers` unpacks the other systems for it")
def test_every_row_agrees_and_is_kept(monkeypatch):
    """The kept results have 60 batches a row; here are 6, with ARL_EXHAUSTIVE=1 all."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts/peers"), *sys.path])
    compare: Any = importlib.import_module("compare")
    rows = compare.all_rows(Path(PEERS))
    found = list(compare.compared(rows, 60 if EXHAUSTIVE else 6))
    assert [(name, system, worst) for name, system, worst, agree in found if not agree] == []
    kept = [line.split(" | ") for line in (ROOT / "docs/data/peers.txt").read_text().splitlines()]
    agreed = [(name, system) for verdict, system, name, _ in kept[3:] if verdict == "agree"]
    assert [(name, system) for name, system, *_ in found] == agreed
