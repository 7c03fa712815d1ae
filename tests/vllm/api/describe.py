"""Writes down the part of vLLM's API that is used here, from its source: nothing is imported.

    python tests/vllm/api/describe.py FOLDER_OF_VLLM > tests/vllm/api/0.33.json

FOLDER_OF_VLLM is the package inside an unpacked sdist, or inside an environment.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

TRANSFER = "distributed.weight_transfer"
TOKENS = "entrypoints.scale_out.token_in_token_out.protocol"
CLASSES = [
    f"{TOKENS}:GenerateRequest",
    f"{TOKENS}:GenerateTokensChoice",
    f"{TOKENS}:GenerateTokensStreamChoice",
    "outputs:WeightVersionSpan",
    "sampling_params:SamplingParams",
    "sampling_params:StructuredOutputsParams",
    f"{TRANSFER}.base:ParamMeta",
    f"{TRANSFER}.base:VLLMWeightSyncClient",
    f"{TRANSFER}.base:WeightSource",
    f"{TRANSFER}.base:WeightTransferEngine",
    f"{TRANSFER}.base:WeightTransferInitInfo",
    f"{TRANSFER}.base:WeightTransferUpdateInfo",
    f"{TRANSFER}.factory:WeightTransferEngineFactory",
    f"{TRANSFER}.factory:WeightTransferTrainerFactory",
    f"{TRANSFER}.ipc_engine:IPCTrainerInitInfo",
    f"{TRANSFER}.nccl_engine:NCCLTrainerInitInfo",
    "config.cache:CacheConfig",
    "config.model:ModelConfig",
    "config.parallel:ParallelConfig",
    "config.structured_outputs:StructuredOutputsConfig",
    "config.vllm:VllmConfig",
    "config.weight_transfer:WeightTransferConfig",
    "lora.lora_model:LoRAModel",
    "lora.peft_helper:PEFTHelper",
    "model_executor.layers.vocab_parallel_embedding:ParallelLMHead",
    "v1.engine.logprobs:LogprobsProcessor",
]
FUNCTIONS = [
    "distributed.parallel_state:get_world_group",
    "model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
    "model_executor.models.utils:is_pp_missing_parameter",
    "model_executor.model_loader.reload.layerwise:initialize_layerwise_reload",
    "model_executor.model_loader.reload.layerwise:finalize_layerwise_reload",
    "model_executor.model_loader.reload.layerwise:finalize_layerwise_processing",
]
ENTRY = "entrypoints.launchers.api_server.entry"
VERBS = ("get", "post", "put", "delete")


class Source:
    """The package in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019 (one object for one run)
    def tree(self, module: str) -> ast.Module:
        """The syntax of a module, by its dotted name below vllm."""
        path = self.folder.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return ast.parse(file.read_text())

    def named(self, module: str, name: str) -> Any:
        """A class or function of a module."""
        for node in self.tree(module).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node
        raise LookupError(f"{module} has no {name}")

    def lineage(self, module: str, name: str) -> Iterator[ast.ClassDef]:
        """A class, and its bases that are vLLM's too."""
        try:
            node = self.named(module, name)
        except LookupError:
            for line in self.tree(module).body:
                if isinstance(line, ast.ImportFrom) and name in {one.name for one in line.names}:
                    home = (line.module or "").removeprefix("vllm.")
                    if home != line.module:
                        yield from self.lineage(home, name)
            return
        yield node
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                yield from self.lineage(module, plain.id)

    def described(self, module: str, name: str) -> dict[str, Any]:
        """The fields and methods of a class, inherited ones included."""
        fields: set[str] = set()
        methods: dict[str, list[str]] = {}
        abstract: set[str] = set()
        properties: set[str] = set()
        for node in reversed(list(self.lineage(module, name))):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    fields.add(item.target.id)
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    marks = {ast.unparse(mark) for mark in item.decorator_list}
                    of = abstract if "abstractmethod" in marks else set()
                    of.add(item.name)
                    abstract -= set() if "abstractmethod" in marks else {item.name}
                    properties |= {item.name} if "property" in marks else set()
                    methods[item.name] = _parameters(item)
        public = {n: p for n, p in sorted(methods.items()) if n[0] != "_" or n == "__iter__"}
        found = {"fields": sorted(fields), "methods": public}
        return found | {"abstract": sorted(abstract), "properties": sorted(properties)}

    def routes(self) -> dict[str, list[str]]:
        """The HTTP methods of every route below entrypoints."""
        found: dict[str, set[str]] = {}
        for file in sorted((self.folder / "entrypoints").rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and (route := _route(node)) is not None:
                    found.setdefault(route[0], set()).update(route[1])
        return {path: sorted(verbs) for path, verbs in sorted(found.items())}

    def flags(self) -> list[str]:
        """The flags of the server's command line."""
        arguments = (self.folder / "engine/arg_utils.py").read_text()
        found = set(re.findall(r'"--([a-z0-9-]+)"', arguments))
        [front] = self.folder.glob("entrypoints/**/cli_args.py")
        for node in ast.parse(front.read_text()).body:
            for item in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found.add(item.target.id.replace("_", "-"))
        return sorted(found | set(re.findall(r'"--([a-z0-9-]+)"', front.read_text())))

    def environment(self) -> list[str]:
        """The variables of the environment."""
        text = (self.folder / "envs.py").read_text()
        return sorted(set(re.findall(r'^    "(VLLM_\w+)": ', text, re.MULTILINE)))

    def refusal(self) -> str:
        """The words to a request that comes during a pause; "" if such a request is queued."""
        for node in ast.walk(self.tree("v1.engine.core")):
            if isinstance(node, ast.Call):
                given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
                if given.get("code") == "engine_paused":
                    return str(given["message"])
        return ""


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    taken = function.args
    rest = [f"*{arg.arg}" for arg in (taken.vararg, taken.kwarg) if arg is not None]
    return [arg.arg for arg in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)] + rest


def _route(call: ast.Call) -> tuple[str, list[str]] | None:
    """The path and methods of `@router.post(path)`, `add_api_route(path, …)`, `Mount(path, …)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    path = getattr(call.args[0], "value", None) if call.args else None
    if not isinstance(path, str) or not path.startswith("/"):
        return None
    if name in VERBS:
        return path, [name.upper()]
    if name == "Mount":
        return path, ["GET"]
    if name == "add_api_route":
        given = [ast.literal_eval(k.value) for k in call.keywords if k.arg == "methods"]
        return path, [verb for verbs in given for verb in verbs]
    return None


def describe(folder: Path) -> dict[str, Any]:
    """The description of the vLLM in `folder`."""
    source = Source(folder)
    functions = {name: _parameters(source.named(*name.split(":"))) for name in FUNCTIONS}
    return {
        "routes": source.routes(),
        "flags": source.flags(),
        "environment": source.environment(),
        "refusal_while_paused": source.refusal(),
        "entry": [n.name for n in source.tree(ENTRY).body if isinstance(n, ast.FunctionDef)],
        "functions": functions,
        "classes": {name: source.described(*name.split(":")) for name in CLASSES},
    }


if __name__ == "__main__":
    found = describe(Path(sys.argv[1]))
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
