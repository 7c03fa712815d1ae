"""The table of damaged publications (tests/kit/damage.py) over a real SGLang server."""

from __future__ import annotations

import pytest

from tests.kit.damage import DEATHS, FILES, TENSORS, Matrix

WAYS = ("shm", "gloo", "ipc")


@pytest.fixture(scope="module")
def table(sglang_server, tmp_path_factory):
    table = Matrix(
        url=sglang_server.url,
        folder=tmp_path_factory.mktemp("versions"),
        make_client=sglang_server.client,
    )
    yield table
    table.transport, table.interrupt = "shm", "recompute"
    table.publish()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", TENSORS)
def test_damaged_tensors_are_refused_and_the_old_ones_serve(table, case, way):
    table.transport = way
    table.check_tensors(case)


@pytest.mark.parametrize("case", FILES)
def test_a_damaged_file_is_refused_and_the_old_one_serves(table, case):
    table.transport = "shm"
    table.check_file(case)


@pytest.mark.parametrize(("way", "before"), [(way, it) for way in WAYS for it in DEATHS[way]])
def test_a_trainer_that_dies_leaves_one_version_or_none(table, way, before, monkeypatch):
    table.transport = way
    table.check_death(before, monkeypatch)
