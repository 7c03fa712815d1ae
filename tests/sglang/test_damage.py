"""The table of damaged publications (tests/kit/damage.py) over a real SGLang server."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym_rl.weights import RemoteEngine
from tests.kit.damage import DEATHS, FILES, TENSORS, Matrix
from tests.vllm.plain import weights_of

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
    table.publish(weights_of(0))


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


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_killed_half_way_takes_no_other_with_it(
    table, start_sglang, way, monkeypatch
):
    table.transport = way
    table.publish()
    dying = start_sglang()
    send = RemoteEngine._request

    def kills(engine: RemoteEngine, method: str, path: str, *rest: Any) -> Any:
        if engine.url == dying.url and path.startswith("/update_weights_from"):
            dying.stop()
        return send(engine, method, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteEngine, "_request", kills)
        version = table.publish(others=[dying.url])
    assert dying.wait_gone(timeout_s=60) == []
    assert table.serves() == version
