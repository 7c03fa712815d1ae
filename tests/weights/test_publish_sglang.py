"""The publisher against a real HTTP server with SGLang's routes, which checks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_gloo import broadcast
from arl_gloo.transport import Broadcasts
from arl_sglang.in_pauses import InPauses
from arl_sglang.version import WholeVersion
from fake_engine import engine
from fake_sglang import sglang
from safetensors.torch import save_file
from torch import Tensor

from agentgym_rl.core import UNKNOWN_LABEL, WeightsError, base_checksum
from agentgym_rl.weights import (
    Publisher,
    SharedFiles,
    peft_tensors,
    recognized,
    write_version,
)
from agentgym_rl.weights.adapter import named
from agentgym_rl.weights.publish import Published
from tests.kit.cases import cases
from tests.kit.publishing import publish_now
from tests.kit.versions import part_of

MODES = {"keep": "in_place", "recompute": "retract", "abort": "abort"}
WAYS = ("shm", "gloo", "ipc")
WRITES = {
    "shm": "/update_weights_from_disk",
    "gloo": "/update_weights_from_distributed",
    "ipc": "/update_weights_from_tensor",
}


def weights(number: float) -> dict[str, Tensor]:
    return {
        "model.a.weight": torch.arange(6.0).reshape(2, 3) + number,
        "model.b.weight": (torch.arange(5.0) + number).to(torch.bfloat16),
        "model.steps": torch.tensor([3]),
    }


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(weights(0), folder / "model.safetensors")
    return folder


class Run:
    """A publisher of one transport, with a folder of its own."""

    def __init__(self, model_dir: Path, way: str = "shm", interrupt: Any = "recompute") -> None:
        self.folder = model_dir.parent / "versions"
        self.folder.mkdir(exist_ok=True)
        transports = {
            "shm": lambda: SharedFiles(self.folder, model_dir=model_dir),
            "gloo": lambda: Broadcasts(timeout_s=10, model_dir=model_dir),
            "ipc": lambda: InPauses("ipc", model_dir=model_dir),
        }
        self.publisher = Publisher(
            recognize=recognized,
            transport=transports[way](),
            interrupt=interrupt,
            timeout_s=10,
            polls_staging=True,
        )

    def publish(
        self, version: int, tensors: Mapping[str, Tensor] | None = None, **engines: Any
    ) -> Published:
        self.publisher.prepare(version, weights(version) if tensors is None else tensors)
        urls = {name: server.url for name, server in engines.items()}
        done = publish_now(self.publisher, urls, version)
        self.publisher.transport.tidy()
        return done


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].equal(expected[name]) for name in expected
    )


@cases("way", WAYS)
@cases("interrupt", MODES)
def test_a_version_is_written_in_a_pause_of_its_own_kind(model_dir, way, interrupt):
    with sglang() as server:
        run = Run(model_dir, way, interrupt)
        done = run.publish(3, a=server)
        run.publish(4, a=server)
        run.publisher.close()
    assert same(server.weights, weights(4))
    assert (server.label, server.mode) == ("0.4", "")
    paths = [path for path in server.paths if path != "/model_info"]
    pause = paths.index("/pause_generation")
    assert server.log[server.paths.index("/pause_generation")][1] == {"mode": MODES[interrupt]}
    assert paths[pause + 1] == "/update_weight_version"
    flushes = [body["flush_cache"] for path, body in server.log if path == WRITES[way]]
    assert flushes == [interrupt != "keep"] * 2
    assert done.served == ("a",)
    assert 0 < done.pause_s < done.seconds
    assert not [path for path in run.folder.iterdir() if "sglang" in path.name]


def test_wait_is_one_request_without_a_pause(model_dir):
    with sglang(overlap=True) as server:
        Run(model_dir, interrupt="wait").publish(3, a=server)
        assert "/pause_generation" not in server.paths
        assert (server.label, same(server.weights, weights(3))) == ("0.3", True)
        for way in ("gloo", "ipc"):
            with pytest.raises(WeightsError, match=r"'wait' needs weights.transport 'shm'"):
                Run(model_dir, way, "wait").publish(4, a=server)
    assert same(server.weights, weights(3))


def test_messages_are_bounded(model_dir, monkeypatch):
    monkeypatch.setattr(broadcast, "BUCKET_BYTES", 16)
    for way in ("gloo", "ipc"):
        with sglang() as server:
            run = Run(model_dir, way)
            run.publish(3, a=server)
            run.publisher.close()
        sent = [body for path, body in server.log if path == WRITES[way]]
        assert [body["flush_cache"] for body in sent] == [False, False, True]
        assert same(server.weights, weights(3))


def test_several_kinds_of_servers_get_a_version_in_one_publication(model_dir):
    """Each is asked once in its life for its kind."""
    for way in ("shm", "gloo"):
        with sglang() as one, sglang() as two, engine() as other:
            run = Run(model_dir, way)
            for version in (3, 4):
                done = run.publish(version, a=one, b=other, c=two)
                assert set(done.served) == {"a", "b", "c"}, done.failed
            assert (one.label, two.label, other.label) == ("0.4", "0.4", "0.4")
            assert same(one.weights, weights(4))
            assert same(two.weights, weights(4))
            if way == "gloo":
                assert same(other.received[-1], weights(4))
            run.publisher.close()


def test_the_same_weights_again_are_only_a_number(model_dir):
    with sglang() as server:
        run = Run(model_dir)
        run.publish(3, a=server)
        server.log.clear()
        run.publisher.prepare(4, weights(3))
        publish_now(run.publisher, {"a": server.url}, 4, same_as=3)
    assert server.label == "0.4"
    assert server.paths == ["/model_info", "/update_weight_version", "/model_info"]


def _narrow(tensors: dict[str, Tensor]) -> None:
    tensors["model.a.weight"] = tensors["model.a.weight"][:, :2].contiguous()


def _not_finite(tensors: dict[str, Tensor]) -> None:
    tensors["model.b.weight"][0] = float("nan")


DAMAGE = {
    "missing": (lambda it: it.pop("model.a.weight"), "model.a.weight is missing"),
    "extra": (lambda it: it.update(x=torch.zeros(1)), "x is not of this model"),
    "narrow": (_narrow, r"model.a.weight has shape \[2, 2\], the model has \[2, 3\]"),
    "not finite": (_not_finite, "model.b.weight has values that are not finite"),
    "whole numbers": (
        lambda it: it.update({"model.a.weight": torch.zeros(2, 3, dtype=torch.int64)}),
        "model.a.weight is I64, the model has F32",
    ),
}


@cases("way", WAYS)
@cases("damage", DAMAGE)
def test_damaged_weights_never_reach_a_server(model_dir, way, damage):
    harm, why = DAMAGE[damage]
    tensors = weights(4)
    harm(tensors)
    with sglang() as server:
        run = Run(model_dir, way)
        run.publish(3, a=server)
        server.log.clear()
        with pytest.raises(WeightsError, match=why):
            run.publish(4, tensors, a=server)
        assert set(server.paths) <= {"/model_info", "/server_info"}
        assert (server.label, server.mode) == ("0.3", "")
        assert same(server.weights, weights(3))
        run.publish(5, a=server)
        run.publisher.close()
    assert same(server.weights, weights(5))


@cases("how", ["cut short", "a flipped bit", "gone"])
def test_a_damaged_file_never_reaches_a_server(model_dir, how):
    with sglang() as server:
        run = Run(model_dir)
        run.publisher.prepare(4, weights(4))
        path = part_of(run.folder / "v4")
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        elif how == "cut short":
            path.write_bytes(data[:-4])
        else:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(WeightsError, match=r"v4\b"):
            publish_now(run.publisher, {"a": server.url}, 4)
        run.publisher.close()
    assert "/pause_generation" not in server.paths
    assert not server.weights


BREAKS = [
    (way, path, nth)
    for way in WAYS
    for path, nth in [(WRITES[way], 1), ("/continue_generation", 1), ("/weights_checker", 1)]
] + [(way, "/end_weight_update", 2) for way in ("gloo", "ipc")]


@cases("step", BREAKS)
@cases("how", ["fail", "die"])
@pytest.mark.slow
def test_a_server_that_fails_while_it_is_written_to_is_not_resumed(model_dir, step, how):
    """Its label says that it has no version; the others serve the new one."""
    way, path, nth = step
    with sglang(**{how: path, "nth": nth}) as torn, sglang() as other:
        run = Run(model_dir, way)
        done = run.publish(4, a=torn, b=other)
        run.publisher.close()
    assert done.served == ("b",)
    assert same(other.weights, weights(4))
    assert path in done.failed["a"]
    assert "it may have parts of two versions, and stays paused" in done.failed["a"]
    if how == "fail" or path != "/continue_generation":
        assert torn.label in (UNKNOWN_LABEL, "0.4")
    if how == "fail":
        assert (torn.label, torn.mode) == (UNKNOWN_LABEL, "in_place")


@cases("way", WAYS)
def test_a_later_publication_brings_a_torn_server_up_to_date(model_dir, way):
    with sglang(fail=WRITES[way]) as server:
        run = Run(model_dir, way)
        with pytest.raises(WeightsError):
            run.publish(3, a=server)
        assert server.label == UNKNOWN_LABEL
        assert run.publish(4, a=server).served == ("a",)
        run.publisher.close()
    assert (server.label, server.mode) == ("0.4", "")
    assert same(server.weights, weights(4))


@cases("path", ["/pause_generation", "/update_weight_version"])
def test_a_server_that_fails_before_it_is_written_to_serves_on(model_dir, path):
    with sglang(fail=path, nth=2 if path == "/pause_generation" else 3) as server:
        run = Run(model_dir, "gloo")
        run.publish(3, a=server)
        with pytest.raises(WeightsError, match=path):
            run.publish(4, a=server)
        run.publisher.close()
    assert (server.label, server.mode) == ("0.3", "")
    assert same(server.weights, weights(3))


def test_bytes_that_differ_from_the_version_are_noticed(model_dir):
    """A tensor that was as expected once must be so after every update."""
    with sglang() as server:
        run = Run(model_dir)
        run.publish(3, a=server)
        server.drops = "model.b.weight"
        with pytest.raises(WeightsError, match=r"has other bytes than .* model\.b\.weight"):
            run.publish(4, a=server)
    assert (server.label, server.mode) == (UNKNOWN_LABEL, "in_place")


def test_a_server_that_keeps_its_label_has_no_version(model_dir):
    with sglang(lie=True) as server, pytest.raises(WeightsError, match=r"reports '0\.9'"):
        Run(model_dir).publish(3, a=server)
    assert server.mode == "in_place"


def test_keep_needs_a_server_without_the_overlap_scheduler(model_dir):
    with sglang(overlap=True) as server:
        with pytest.raises(WeightsError, match="--disable-overlap-schedule"):
            Run(model_dir, interrupt="keep").publish(3, a=server)
        assert "/pause_generation" not in server.paths
        assert Run(model_dir, interrupt="recompute").publish(3, a=server).served == ("a",)


def test_tensors_reach_no_server_of_several_pipelines(model_dir):
    with sglang(pp_size=2) as server:
        with pytest.raises(WeightsError, match=r"'pp_size': 2.*use 'shm'"):
            Run(model_dir, "ipc").publish(3, a=server)
        assert Run(model_dir).publish(3, a=server).served == ("a",)


def test_a_vllm_server_cannot_take_part_in_a_transport_of_sglang(model_dir):
    with engine() as server, pytest.raises(WeightsError, match="use 'shm' or 'gloo'"):
        Run(model_dir, "ipc").publish(3, a=server)


# ---------------------------------------------------------------- adapters beside the weights
LAYER = "model.a"


def adapter(number: float, model_dir: Path) -> dict[str, Tensor]:
    pair = (torch.full((1, 3), number), torch.full((2, 1), number))
    return named({LAYER: pair}, scaling=0.5, base=base_checksum(model_dir))


@cases("interrupt", ["abort", "wait"])
def test_an_adapter_is_loaded_beside_those_that_serve(model_dir, interrupt):
    with sglang(enable_lora=True) as server:
        run = Run(model_dir, interrupt=interrupt)
        for version in (3, 4, 5):
            done = run.publish(version, adapter(version, model_dir), a=server)
        aborts = [body for path, body in server.log if path == "/abort_request"]
        paths, loaded = server.paths, set(server.adapters)
        # The same version again, as for one of several servers: nothing is left to do.
        server.log.clear()
        publish_now(run.publisher, {"a": server.url}, 5)
        run.publisher.close()
    assert server.label == "0.5"
    assert loaded == {"arl-0.4", "arl-0.5"}  # 4: for requests that have named it
    last = server.adapters["arl-0.5"]
    assert last.pop("scaling") == 0.5
    assert same(last, peft_tensors(adapter(5, model_dir)))
    assert aborts == [{"abort_all": True}] * (3 if interrupt == "abort" else 0)
    assert not [path for path in paths if "pause" in path or "from_disk" in path]
    assert "/load_lora_adapter" not in server.paths
    assert done.pause_s == 0
    assert not [path for path in run.folder.iterdir() if "sglang" in path.name]


def test_layers_that_sglang_joins_with_an_adapted_one_get_matrices_of_zeros(model_dir):
    rows = {"model.q_proj": 4, "model.k_proj": 2, "model.v_proj": 2}
    model = {f"{layer}.weight": torch.ones(number, 3) for layer, number in rows.items()}
    save_file(model, model_dir / "model.safetensors")
    pair = torch.full((1, 3), 2.0), torch.full((4, 1), 2.0)
    tensors = named({"model.q_proj": pair}, scaling=0.5, base=base_checksum(model_dir))
    with sglang(enable_lora=True) as server:
        Run(model_dir, interrupt="abort").publish(3, tensors, a=server)
    loaded = server.adapters["arl-0.3"]
    del loaded["scaling"]
    zeros = {
        layer: (torch.zeros(1, 3), torch.zeros(number, 1))
        for layer, number in rows.items()
        if layer != "model.q_proj"
    }
    pairs = {"model.q_proj": pair, **zeros}
    expected = peft_tensors(named(pairs, scaling=0.5, base=base_checksum(model_dir)))
    assert same(loaded, expected)


@cases(
    "options, why",
    [
        ({"interrupt": "keep"}, "use 'abort' or 'wait'"),
        ({"interrupt": "recompute"}, "use 'abort' or 'wait'"),
        ({"interrupt": "abort", "way": "gloo"}, "weights.transport to 'shm'"),
        ({"interrupt": "abort", "way": "ipc"}, "weights.transport to 'shm'"),
    ],
)
def test_updates_that_adapters_cannot_have_are_refused(model_dir, options, why):
    with sglang(enable_lora=True) as server, pytest.raises(WeightsError, match=why):
        Run(model_dir, **options).publish(3, adapter(3, model_dir), a=server)
    assert (server.label, server.adapters) == ("default", {})


def test_a_server_of_adapters_takes_no_other_weights(model_dir):
    with sglang(enable_lora=True) as server:
        run = Run(model_dir, interrupt="abort")
        run.publish(3, adapter(3, model_dir), a=server)
        with pytest.raises(WeightsError, match="are no adapter"):
            run.publish(4, weights(4), a=server)
        assert server.label == "0.3"
        # Another trainer has numbered its versions alike.
        other = Run(model_dir, interrupt="abort")
        with pytest.raises(WeightsError, match=r"serves other weights as '0\.3'"):
            other.publish(3, adapter(9, model_dir), a=server)
    assert server.adapters.keys() == {"arl-0.3"}


def test_a_first_version_may_have_the_name_of_the_empty_adapter(model_dir, tmp_path):
    """Neither changes anything; requests that have named it are not waited for."""
    with sglang(enable_lora=True) as server:
        server.label = "0.0"
        server.adapters["arl-0.0"] = {}
        server.folders["arl-0.0"] = str(tmp_path / "empty-adapter-2x3-1")
        run = Run(model_dir, interrupt="abort")
        with pytest.raises(WeightsError, match=r"serves other weights as '0\.0'"):
            run.publish(0, adapter(1, model_dir), a=server)
        run = Run(model_dir, interrupt="abort")
        assert run.publish(0, adapter(0, model_dir), a=server).served == ("a",)
    assert server.label == "0.0"
    assert server.adapters == {"arl-0.0": {}}


def test_equal_adapters_have_a_name_each(model_dir):
    """A request names the one of its version: a new number alone would leave none to name."""
    with sglang(enable_lora=True) as server:
        run = Run(model_dir, interrupt="abort")
        run.publish(3, adapter(3, model_dir), a=server)
        run.publisher.prepare(4, adapter(3, model_dir))
        publish_now(run.publisher, {"a": server.url}, 4, same_as=3)
    assert server.label == "0.4"
    assert same(server.adapters["arl-0.4"], server.adapters["arl-0.3"])


def test_a_folder_that_could_not_be_filled_is_made_anew(model_dir, tmp_path, monkeypatch):
    whole = WholeVersion(write_version(tmp_path, 1, weights(1)), model_dir)

    def full(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("arl_sglang.version.link_weights", full)
        with pytest.raises(WeightsError, match=r"cannot make .* no space"):
            whole.folder()
    assert list(tmp_path.glob(".sglang-*")) == []
    folder = whole.folder()
    assert (folder / "config.json").exists()
    assert list(folder.glob("model*"))
    whole.close()
    assert not folder.exists()
