"""Our calls against vLLM's API as its source has it: 0.33 was read, never run.

`api/describe.py` writes the descriptions from the source of a version.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import types
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from arl_vllm.build import RELEASES
from arl_vllm.client import VllmEngine
from arl_vllm.command import server_command
from arl_vllm.kind import VllmEngineConfig
from arl_vllm.native import FleetClient, weight_source

import agentgym_rl
from agentgym_rl.config import ClusterConfig, WeightsConfig
from agentgym_rl.engines import protocol
from agentgym_rl.engines.client.deltas import PausedError, answered
from tests.kit.launches import launch

from .api.describe import TOKENS, TRANSFER

ROOT = Path(agentgym_rl.__file__).parents[1]
API = Path(__file__).parent / "api"
VERSIONS = ["0.32", "0.33"]
_KERNEL = ("core/engine", "engines/protocol", "engines/client/client", "weights/engine_routes")
ASKING = [
    *(f"agentgym_rl/{name}.py" for name in _KERNEL),
    *(f"extensions/arl_vllm/{name}.py" for name in ("client", "native", "checks")),
]
OURS_ALONE = {"decode_times"}
"""The fields of a reply that only the embedded engine has."""


@pytest.fixture(params=VERSIONS)
def api(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads((API / f"{request.param}.json").read_text())


def fields(api: dict[str, Any], name: str) -> set[str]:
    return set(api["classes"][name]["fields"])


def test_the_versions_are_those_that_are_accepted():
    for version in VERSIONS:
        RELEASES.check(f"{version}.0", where="here")
        assert RELEASES.has_spans(f"{version}.0")


def test_every_route_that_is_called_is_there(api):
    text = "".join((ROOT / file).read_text() for file in ASKING)
    called = set(re.findall(r'f?"(/[a-z_0-9/]+)[?"]', text))
    assert {"/pause", "/is_paused", "/inference/v1/generate", "/sleep", "/wake_up"} <= called
    assert called <= api["routes"].keys()


def commands() -> list[tuple[list[str], dict[str, str]]]:
    """What every kind of server is started with."""
    cpu, gpu = (RELEASES.build("p", "0.33.0", is_cpu=is_cpu) for is_cpu in (True, False))
    parts = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "expert_parallel_size": 2}
    config = VllmEngineConfig(gpu_memory_utilization=0.5, **parts)
    sections = {"weights": WeightsConfig(transport="ipc"), "model_dir": ROOT}
    sleeping = ClusterConfig(colocated=True)
    return [
        server_command(launch(VllmEngineConfig(), **sections), cpu),
        server_command(launch(config, cluster=sleeping, **sections), gpu),
    ]


def test_every_flag_and_variable_of_a_server_is_there(api):
    for argv, env in commands():
        named = {flag[2:].removeprefix("no-") for flag in argv if flag.startswith("--")}
        assert {flag.partition(".")[0] for flag in named} <= set(api["flags"])
        for flag in named:
            if "." in flag:
                assert flag.partition(".")[2] in fields(
                    api, "config.structured_outputs:StructuredOutputsConfig"
                )
        assert {name for name in env if name.startswith("VLLM_")} <= set(api["environment"])
        assert argv[3] == "vllm.entrypoints.launchers.api_server.entry"
    assert "main" in api["entry"]


def test_requests_and_replies_have_its_fields(api):
    asked = set(protocol.GenerateBody.__struct_fields__)
    assert asked <= fields(api, f"{TOKENS}:GenerateRequest")
    sampling = set(protocol.SamplingBody.__struct_fields__)
    assert sampling <= fields(api, "sampling_params:SamplingParams")
    grammar = set(protocol.StructuredOutputs.__struct_fields__)
    assert grammar <= fields(api, "sampling_params:StructuredOutputsParams")
    read = set(protocol.Choice.__struct_fields__) - OURS_ALONE
    for choice in ("GenerateTokensChoice", "GenerateTokensStreamChoice"):
        assert read <= fields(api, f"{TOKENS}:{choice}")
    assert set(protocol.VersionSpan.__struct_fields__) == fields(api, "outputs:WeightVersionSpan")


def test_the_configuration_that_checks_read_is_there(api):
    text = (ROOT / "extensions/arl_vllm/checks.py").read_text()
    parts = {"model": ("model", "Model"), "cache": ("cache", "Cache")}
    for name, (module, kind) in parts.items():
        used = set(re.findall(rf'\b{name}(?:\["|\.get\(")(\w+)"', text))
        assert used
        assert used <= fields(api, f"config.{module}:{kind}Config")
    parallel = fields(api, "config.parallel:ParallelConfig")
    assert {
        *("worker_extension_cls", "pipeline_parallel_size", "enable_expert_parallel")
    } <= parallel
    assert "backend" in fields(api, "config.weight_transfer:WeightTransferConfig")
    whole = fields(api, "config.vllm:VllmConfig")
    assert set(re.findall(r'server(?:\["|\.get\(")(\w+)"', text)) - {"seed"} <= whole


class Imported(NamedTuple):
    module: str
    name: str


def imported() -> list[Imported]:
    """Return what our extension imports from vLLM."""
    found = []
    for file in (ROOT / "extensions/arl_vllm").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
                module = (node.module or "").removeprefix("vllm.")
                found += [Imported(module, name.name) for name in node.names]
    return found


@pytest.mark.slow
def test_what_is_imported_is_there(api):
    known = [*api["classes"], *api["functions"]]
    assert len(imported()) > 10
    for module, name in imported():
        assert any(re.fullmatch(rf"{re.escape(module)}(\.\w+)?:{name}", one) for one in known)


def test_functions_take_what_they_get(api):
    takes = {name.partition(":")[2]: params for name, params in api["functions"].items()}
    assert takes["initialize_layerwise_reload"] == ["model"]
    assert takes["finalize_layerwise_reload"] == ["*args", "*kwargs"]
    assert takes["finalize_layerwise_processing"][:2] == ["model", "model_config"]
    assert {"layer", "remove_weight"} <= set(takes["dispatch_cpu_unquantized_gemm"])
    register = api["classes"][f"{TRANSFER}.factory:WeightTransferEngineFactory"]["methods"]
    assert register["register_engine"][1:] == ["name", "module_path_or_cls", "class_name"]
    made = api["classes"][f"{TRANSFER}.factory:WeightTransferTrainerFactory"]["methods"]
    assert made["trainer_init"][1:] == ["init_info", "client", "source"]


def test_our_backends_are_transfer_engines(api):
    engine = api["classes"][f"{TRANSFER}.base:WeightTransferEngine"]
    tree = ast.parse((ROOT / "extensions/arl_vllm/transfer.py").read_text())
    [staged] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "StagedTransfer"]
    ours = {n.name: n for n in staged.body if isinstance(n, ast.FunctionDef)}
    assert set(engine["abstract"]) <= ours.keys()
    for name, takes in engine["methods"].items():
        if name in ours:
            assert [arg.arg for arg in ours[name].args.args] == takes
    assert "parse_update_info" in engine["methods"]


def test_our_client_is_a_weight_sync_client(api):
    for name, takes in api["classes"][f"{TRANSFER}.base:VLLMWeightSyncClient"]["methods"].items():
        assert list(inspect.signature(getattr(FleetClient, name)).parameters) == takes


def test_the_trainers_engines_get_what_they_take(api):
    nccl = {"rank", "master_address", "master_port", "world_size"}
    assert nccl <= fields(api, f"{TRANSFER}.nccl_engine:NCCLTrainerInitInfo")
    assert {"rank", "packed"} <= fields(api, f"{TRANSFER}.ipc_engine:IPCTrainerInitInfo")
    assert {"name", "dtype", "shape"} <= fields(api, f"{TRANSFER}.base:ParamMeta")


def stub(api: dict[str, Any]) -> types.ModuleType:
    """A module with a WeightSource of the described shape, as strict as vLLM's."""
    described = api["classes"][f"{TRANSFER}.base:WeightSource"]
    is_property = described["properties"] == ["metadata"]

    class WeightSource(ABC):  # noqa: B024 (its abstract methods follow)
        def __init_subclass__(cls) -> None:
            if is_property and not isinstance(vars(cls)["metadata"], cached_property):
                raise TypeError("metadata must be a functools.cached_property")

    for name in described["abstract"]:
        member = abstractmethod(lambda self: None)
        setattr(WeightSource, name, property(member) if is_property else member)
    WeightSource.__abstractmethods__ = frozenset(described["abstract"])
    module = types.ModuleType("base")
    module.WeightSource = WeightSource  # type: ignore[attr-defined]
    module.ParamMeta = lambda *meta: meta  # type: ignore[attr-defined]
    return module


def test_the_source_is_read_as_each_version_reads_it(api, monkeypatch):
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, f"vllm.{TRANSFER}.base", stub(api))
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)}
    source = weight_source(lambda: tensors)
    described = api["classes"][f"{TRANSFER}.base:WeightSource"]
    if described["properties"]:
        declared, passes = source.metadata, source.iter_full
    else:
        declared, passes = source.metadata(), source.__iter__
    assert declared == [("a", torch.float32, (2, 3)), ("b", torch.bfloat16, (1,))]
    tensors["a"] = torch.ones(2, 3)  # the next version
    for _ in range(2):  # each pass is a new one
        assert [(name, float(t.sum())) for name, t in passes()] == [("a", 6.0), ("b", 1.0)]


def test_a_refusal_during_a_pause_is_told_from_a_failure(api):
    said = api["refusal_while_paused"]
    error = {"message": said or "other words", "type": "ServiceUnavailableError", "code": 503}
    found = answered("http://e", 503, json.dumps({"error": error}).encode(), VllmEngine.words)
    assert isinstance(found, PausedError) is bool(said)


def test_the_description_is_of_the_vllm_that_is_installed(vllm_python):
    ask = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    asked = [vllm_python, "-c", ask]
    folder = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    describe = [sys.executable, str(API / "describe.py"), folder]
    made = subprocess.run(describe, capture_output=True, text=True, check=True).stdout
    assert json.loads(made) == json.loads((API / "0.32.json").read_text())
