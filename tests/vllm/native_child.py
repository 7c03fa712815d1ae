"""Runs where vLLM is installed (see test_native_transport.py): argv[1] names the check."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "weights"))

from arl_vllm.native import FleetClient, NativeTransport, json_safe, weight_source
from fake_engine import engine
from vllm.distributed.weight_transfer import nccl_common
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCTrainerInitInfo,
    IPCWeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from agentgym_rl.core import WeightsError
from agentgym_rl.weights import Publisher
from tests.kit.publishing import publish_now

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}


@dataclass
class PlainInitInfo(TrainerInitInfo):
    backend: ClassVar[str] = "plain"


class PlainTrainer(TrainerWeightTransferEngine[PlainInitInfo]):
    """A trainer engine of vLLM's contract that needs no GPU: metadata goes, tensors do not."""

    init_info_cls = PlainInitInfo

    @classmethod
    def trainer_init(cls, init_info: PlainInitInfo, *, client: Any, source: Any = None) -> Any:
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 4})
        return cls(client=client, source=source)

    def send_weights(self) -> None:
        assert self.source is not None
        self.client.start_weight_update()
        names = [meta.name for meta in declared(self.source)]
        assert [name for name, _ in sent(self.source)] == names
        self.client.update_weights({"names": names})
        self.client.finish_weight_update()


class PlainTransport(NativeTransport):
    """NativeTransport with another engine of the same factory."""

    def _make_trainer(self) -> Any:
        source = weight_source(lambda: self._tensors)
        return WeightTransferTrainerFactory.trainer_init(
            PlainInitInfo(rank=0), client=self._client, source=source
        )


def declared(source: Any) -> list[Any]:
    """What a source says of its tensors, as vLLM's own engines read it."""
    return source.metadata() if callable(source.metadata) else source.metadata


def sent(source: Any) -> list[tuple[str, torch.Tensor]]:
    """What a source yields, as vLLM's own engines iterate over it."""
    return list(source if callable(source.metadata) else source.iter_full())


def publisher(transport: NativeTransport) -> Publisher:
    made = Publisher(transport=transport, interrupt="keep", timeout_s=20, polls_staging=True)
    made.prepare(1, TENSORS)
    return made


def failed(made: Publisher, engines: Mapping[str, str]) -> str:
    """Why a publication did not succeed."""
    try:
        publish_now(made, engines, 3)
    except WeightsError as failure:
        return str(failure)
    raise AssertionError("what cannot succeed passed for a publication")


def signatures() -> None:
    """What vllm_native.py relies on is there."""
    names = {field.name for field in fields(NCCLTrainerInitInfo)}
    assert {"rank", "master_address", "master_port", "world_size"} <= names
    info = NCCLTrainerInitInfo(rank=0, master_address="h", master_port=1, world_size=2)
    assert info.is_sender
    assert IPCTrainerInitInfo(rank=0, packed=True).is_sender
    assert {"nccl", "ipc"} <= WeightTransferTrainerFactory._registry.keys()
    assert isinstance(FleetClient(), VLLMWeightSyncClient)
    source = weight_source(lambda: TENSORS)
    assert isinstance(source, WeightSource)
    for meta, (name, tensor) in zip(declared(source), sent(source), strict=True):
        assert (meta.name, meta.dtype, meta.shape) == (name, tensor.dtype, tuple(tensor.shape))
    if not callable(source.metadata):  # what the engines of 0.33 ask first
        assert source.implements_iter_full()
        assert source.owned_names(0) == list(TENSORS)


def wire() -> None:
    """What the client sends is what the workers parse."""
    worker = nccl_common.NCCLWeightTransferInitInfo(
        master_address="h", master_port=1, rank_offset=1, world_size=4
    )
    with engine(workers=2) as one, engine() as two:
        transport = PlainTransport("nccl")
        publish_now(publisher(transport), {"a": one.url, "b": two.url}, 1)
        transport._client.init_weight_transfer_engine(nccl_common.worker_init_payload(worker))
        sent = two.log[-1][1]["init_info"]
    assert nccl_common.NCCLWeightTransferInitInfo(**sent).rank_offset == 3
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    kinds = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]}
    handles = [{"GPU-1": (1, "two")}]
    parsed = IPCWeightTransferUpdateInfo(**json_safe({**kinds, "ipc_handles": handles}))
    assert parsed.ipc_handles == handles


def publication() -> None:
    """Versions arrive; a dead engine is left out; a broken transfer leaves none resumed."""
    transport = PlainTransport("nccl")
    made = publisher(transport)
    with engine(workers=2) as one, engine() as two, engine(fail="/update_weights") as bad:
        done = publish_now(made, {"a": one.url, "b": two.url}, 1)
        assert done.served == ("a", "b"), done
        assert one.label == two.label == "0.1"
        two.hang_up()
        done = publish_now(made, {"a": one.url, "b": two.url}, 2)
        assert (done.served, done.failed.keys()) == (("a",), {"b"}), done
        assert one.paths.count("/init_weight_transfer_engine") == 2
        reasons = failed(made, {"a": one.url, "bad": bad.url})
        for server in (one, bad):
            why = next(it for it in reasons.split("; ") if f" ({server.url}): " in f" {it}")
            assert "/update_weights: HTTP 500" in why, reasons
        assert one.paused
        assert bad.paused
        one.paused = one.active = False
        assert publish_now(made, {"a": one.url}, 4).served == ("a",)
        made.prepare(5, {"a": TENSORS["a"]})  # other tensors: another group
        assert publish_now(made, {"a": one.url}, 5).served == ("a",)
        assert one.paths.count("/init_weight_transfer_engine") == 5
        made.close()


def without_gpu() -> None:
    """vLLM's own NCCL engine on a machine without one: an error in time, nobody was paused."""
    with engine() as one:
        reasons = failed(publisher(NativeTransport("nccl")), {"a": one.url})
        assert "vLLM's transfer failed" in reasons, reasons
        assert not any(path.startswith("/pause") for path in one.paths)


if __name__ == "__main__":
    WeightTransferTrainerFactory.register_engine("plain", PlainTrainer)
    {"signatures": signatures, "wire": wire, "publication": publication, "gpu": without_gpu}[
        sys.argv[1]
    ]()
    print("passed", flush=True)
    os._exit(0)  # a transfer that hung on purpose is not waited for
