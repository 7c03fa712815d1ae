"""The table of damaged publications (tests/kit/damage.py) over a real vLLM server."""

from __future__ import annotations

import pytest
from arl_vllm.client import VllmEngine

from tests.kit.damage import DEATHS, FILES, TENSORS, Matrix

from .plain import weights_of


@pytest.fixture(scope="module")
def table(vllm_server, tmp_path_factory):
    table = Matrix(
        url=vllm_server.url,
        folder=tmp_path_factory.mktemp("versions"),
        make_client=lambda: VllmEngine(vllm_server.url, timeout_s=60, send_seed=False),
        polls_staging=True,
    )
    yield table
    table.publish(weights_of(0))


@pytest.mark.parametrize("case", TENSORS)
def test_damaged_tensors_are_refused_and_the_old_ones_serve(table, case):
    table.check_tensors(case)


@pytest.mark.parametrize("case", FILES)
def test_a_damaged_file_is_refused_and_the_old_one_serves(table, case):
    table.check_file(case)


@pytest.mark.parametrize("before", DEATHS["vllm"])
def test_a_trainer_that_dies_leaves_one_version(table, before, monkeypatch):
    table.check_death(before, monkeypatch)
