"""A small real HTTP server that takes weight updates as SGLang 0.5.23 does: into the weights that
it serves, message by message, without a look at them."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import ProcessGroupGloo

from agentgym_rl.core import weight_files
from tests.kit.threaded_server import ThreadedServer


class FakeSglang(ThreadedServer):
    """Serves the update routes, and keeps a log of them.

    On its `nth` call (from 1) of the path `fail` it answers 400 after it has done as told, at `die`
    it hangs up there and from then on. `drops` is a tensor that it loses on the way.
    """

    def __init__(
        self,
        *,
        fail: str = "",
        die: str = "",
        nth: int = 1,
        drops: str = "",
        lie: bool = False,
        overlap: bool = False,
        **info: Any,
    ):
        super().__init__()
        self.fail, self.die, self.nth, self.drops, self.lie = fail, die, nth, drops, lie
        self.info = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "nnodes": 1, "device": "cpu"}
        self.info |= {"dtype": "float32", "quantization": None, **info}
        self.info["disable_overlap_schedule"] = not overlap
        self.label = "default"
        self.mode = ""
        self.dead = self.session = False
        self.weights: dict[str, Tensor] = {}
        self.adapters: dict[str, dict[str, Tensor]] = {}
        self.folders: dict[str, str] = {}
        self.group: Any = None

    def server_close(self) -> None:
        super().server_close()
        self.group = None

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.log]

    def respond(self, path: str, body: Any) -> tuple[int, Any] | None:
        self.log.append((path, body))
        is_nth = self.paths.count(path) == self.nth
        self.dead |= path == self.die and is_nth
        if self.dead:
            return None
        handle = getattr(self, "_" + path.strip("/").replace("/", "_"), None)
        answer = handle(body) if handle else (404, {"detail": "Not Found"})
        if path == self.fail and is_nth:
            return 400, {"success": False, "message": "no reason"}
        return answer

    def _model_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"weight_version": "0.9" if self.lie else self.label, "model_path": ""}

    def _server_info(self, body: Any) -> tuple[int, Any]:
        return 200, self.info

    def _pause_generation(self, body: Any) -> tuple[int, Any]:
        self.mode = body["mode"]
        return 200, {"status": "ok"}

    def _continue_generation(self, body: Any) -> tuple[int, Any]:
        self.mode = ""
        return 200, {"status": "ok"}

    def _update_weight_version(self, body: Any) -> tuple[int, Any]:
        assert body["abort_all_requests"] is False
        self.label = body["new_version"]
        return 200, {"success": True}

    def _load(self, tensors: dict[str, Tensor], body: Any) -> tuple[int, Any]:
        if body["flush_cache"] and self.mode == "in_place":
            return 400, {"success": False, "message": "the cache was not flushed"}
        self.weights |= {name: it.clone() for name, it in tensors.items() if name != self.drops}
        self.label = body.get("weight_version") or self.label
        return 200, {"success": True}

    def _update_weights_from_disk(self, body: Any) -> tuple[int, Any]:
        folder = Path(body["model_path"])
        assert (folder / "config.json").is_file()
        tensors: dict[str, Tensor] = {}
        for part in weight_files(folder):
            tensors |= load_file(part)
        return self._load(tensors, body)

    def _begin_weight_update(self, body: Any) -> tuple[int, Any]:
        if self.session:
            return 400, {"success": False, "message": "a session is already open"}
        self.session = True
        return 200, {"success": True}

    def _end_weight_update(self, body: Any) -> tuple[int, Any]:
        found, self.session = self.session, False
        return (200 if found else 400), {"success": found}

    def _update_weights_from_tensor(self, body: Any) -> tuple[int, Any]:
        assert self.session
        [data] = body["serialized_named_tensors"]
        return self._load(dict(pickle.loads(base64.b64decode(data))), body)

    def _init_weights_update_group(self, body: Any) -> tuple[int, Any]:
        limit = timedelta(seconds=10)
        store: Any = TCPStore(body["master_address"], body["master_port"], timeout=limit)
        for prefix in (body["group_name"], f"{body['group_name']}/", "cpu/"):
            store = PrefixStore(prefix, store)
        rank = body["rank_offset"]
        self.group = ProcessGroupGloo(store, rank, body["world_size"], limit)
        return 200, {"success": True}

    def _destroy_weights_update_group(self, body: Any) -> tuple[int, Any]:
        found, self.group = self.group, None
        return (200 if found else 400), {"success": bool(found)}

    def _update_weights_from_distributed(self, body: Any) -> tuple[int, Any]:
        assert self.session
        assert self.group is not None
        assert body["load_format"] == "flattened_bucket"
        dtypes = [getattr(torch, name) for name in body["dtypes"]]
        kinds = list(zip(body["names"], dtypes, body["shapes"], strict=True))
        sizes = [dtype.itemsize * torch.Size(shape).numel() for _, dtype, shape in kinds]
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        self.group.broadcast([flat]).wait()
        parts = zip(kinds, flat.split(sizes), strict=True)
        return self._load({n: p.view(d).reshape(s) for (n, d, s), p in parts}, body)

    def _v1_models(self, body: Any) -> tuple[int, Any]:
        names = {"policy": "policy", **self.folders}
        return 200, {"data": [{"id": name, "root": root} for name, root in names.items()]}

    def _load_lora_adapter(self, body: Any) -> tuple[int, Any]:
        name, folder = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return 400, {"success": False, "error_message": f"{name} is already loaded"}
        settings = json.loads((folder / "adapter_config.json").read_text())
        self.adapters[name] = load_file(folder / "adapter_model.safetensors")
        self.adapters[name]["scaling"] = torch.tensor(settings["lora_alpha"] / settings["r"])
        self.folders[name] = str(folder)
        return 200, {"success": True}

    def _unload_lora_adapter(self, body: Any) -> tuple[int, Any]:
        del self.adapters[body["lora_name"]], self.folders[body["lora_name"]]
        return 200, {"success": True}

    def _abort_request(self, body: Any) -> tuple[int, Any]:
        return 200, None

    def _weights_checker(self, body: Any) -> tuple[int, Any]:
        sums = {}
        for name, tensor in self.weights.items():
            data = tensor.to(torch.float32).contiguous().numpy().tobytes()
            sums[name] = hashlib.sha256(data).digest()[:8].hex()
        return 200, {"success": True, "ranks": [{"checksums": sums}]}


def sglang(**options: Any) -> AbstractContextManager[FakeSglang]:
    """Run a fake SGLang for a context."""
    return FakeSglang(**options).running()
