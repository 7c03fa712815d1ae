"""One-way imports: a package imports only from floors below its own (docs/map.md shows them).

Imports are read from the syntax tree, so lazy ones and those under TYPE_CHECKING count too.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.kit.cases import cases

ROOT = Path(__file__).parents[1]

# From the bottom up. A package of agentgym_rl that stands on no floor fails the test: place it.
FLOORS = [
    "core",
    "config runtime",
    "algo cluster gateway gym models storage",
    "controller report weights",
    "engines trainer",
    "fleet rollout",
    "evaluate",
    "run",
    "cli",
]
FOR_PLUGINS = {"config", "core", "gym", "runtime"}
PLUGINS = {"envs": "arl_envs", "agents": "arl_agents", "sandboxes": "arl_sandboxes"}
EXTENSIONS = "extensions"
"""The folder of our extensions: above all floors but for the entry of the command line."""
CLI_FOR_EXTENSIONS = {"command", "config_keys", "output", "training"}
"""The modules of `cli` that extensions may import."""

ALLOWED: Mapping[str, str] = {
    "torch": (
        "algo algo.* trainer trainer.* "
        "weights.adapter weights.files weights.loading "
        "weights.parts weights.transport weights.publish weights.source weights.version_folder "
        "arl_embedded* arl_experts.balance arl_experts.load arl_experts.watch "
        "arl_gloo.broadcast arl_gloo.transport arl_lora.adapter arl_lora.experts "
        "arl_megatron.cpu arl_megatron.layout arl_megatron.model arl_megatron.trainer "
        "arl_meters.devices arl_meters.layers "
        "arl_objectives.covariance arl_objectives.critic arl_objectives.kl arl_objectives.losses "
        "arl_objectives.moment_mask "
        "arl_objectives.reference arl_objectives.rewards arl_objectives.small_terms "
        "arl_objectives.taught arl_objectives.teachers arl_objectives.values "
        "arl_optimizers.adamw arl_optimizers.eight_bits arl_optimizers.muon "
        "arl_parallel.attention arl_parallel.checkpoint arl_parallel.collectives "
        "arl_parallel.experts arl_parallel.head arl_parallel.mesh arl_parallel.parallel "
        "arl_audit.recompute arl_plan.anatomy arl_plan.probe arl_sglang.version "
        "arl_sglang.in_pauses arl_sglang.weight_routes arl_trial.model_process "
        "arl_trial.own_optimizer arl_varlen.attention arl_varlen.kind arl_warmup.trainer "
        "arl_vllm.native arl_vllm.staging arl_vllm.swap arl_vllm.transfer"
    ),
    "vllm": "arl_vllm*",
    "ray": "arl_scale.ray_*",
    "transformers.utils.chat_parsing": "arl_parsers.response_template",
}
"""Which modules may import a heavy package, as patterns: below agentgym_rl, or of an extension."""

CHAT_PARSING = "transformers.utils.chat_parsing"
"""The one part of transformers that does without torch."""

PULLS_TORCH = ("torch", "transformers", "safetensors.torch", "accelerate")

FACADE = "agentgym_rl"
ISOLATION = "arl_isolation"
"""Below everything: it also runs in sandboxes, where there is the standard library alone."""
LEVEL = {name: height for height, line in enumerate(FLOORS) for name in line.split()}


def sources(root: Path) -> dict[str, Path]:
    """Dotted module name -> file, for the package and the plugins in their plain folders."""
    plugins = [(root / folder, name) for folder, name in PLUGINS.items()]
    extensions = [(folder.parent, folder.name) for folder in (root / EXTENSIONS).glob("arl_*")]
    folders = [(root, FACADE), (root, ISOLATION), *plugins, *extensions]
    return {
        ".".join(file.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): file
        for base, package in folders
        for file in sorted((base / package).rglob("*.py"))
    }


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), filename=str(file))


def _absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _named_in_string(node: ast.AST) -> str | None:
    """`import_module("x.y")` and `__import__("x.y")`: the one argument when it is a literal."""
    match node:
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__")
            | ast.Attribute(attr="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return name
    return None


def imports(
    module: str, files: Mapping[str, Path], *, listed: bool = True
) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything `module` imports; names of ours are module names. Not
    `listed`: without what a package lists, as that loads on first use."""
    names = () if listed else _listed(module, files[module])
    for line, base, name in imported(module, files):
        if name not in names:
            yield line, _module_of(base, name, files) if name else base


def imported(module: str, files: Mapping[str, Path]) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of everything `module` imports; without a name for a whole module."""
    is_package = files[module].name == "__init__.py"
    for node in ast.walk(tree_of(files[module])):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, is_package, node)
            yield from ((node.lineno, base, alias.name) for alias in node.names)
        elif name := _named_in_string(node):
            yield node.lineno, name, ""


def _module_of(base: str, name: str, files: Mapping[str, Path]) -> str:
    if f"{base}.{name}" in files:
        return f"{base}.{name}"
    if base in files and (home := _listed(base, files[base]).get(name)):
        return _module_of(home, name, files)  # what counts is the module it comes from
    return f"{base}.{name}" if base == "safetensors" else base


@cache
def _listed(package: str, file: Path) -> dict[str, str]:
    """Return the modules of the names that load on first use (`agentgym_rl/core/lazy.py`)."""
    if file.name != "__init__.py":
        return {}
    return {
        alias.name: _absolute(package, True, node)
        for block in tree_of(file).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and _absolute(package, True, node).startswith(FACADE)
        for alias in node.names
    }


def violations(root: Path) -> list[str]:
    """Every broken rule, one sentence each, with file and line."""
    files = sources(root)
    found = [
        f"agentgym_rl.{name} stands on no floor: place it in FLOORS of tests/test_layers.py"
        for name in sorted({m.split(".")[1] for m in files if m.startswith(f"{FACADE}.")})
        if name not in LEVEL and name != "__main__"
    ]
    extensions = {folder.name for folder in (root / EXTENSIONS).glob("arl_*")}
    bases = {name: _builds_on(files[name]) for name in extensions if name in files}
    for module, file in files.items():
        for line, target in imports(module, files):
            if target.partition(".")[0] in bases.get(module.partition(".")[0], ()):
                continue
            if problem := _problem(module, target, extensions):
                found.append(
                    f"{file.relative_to(root)}:{line}: {module} imports {target}: {problem}"
                )
    return found + _cycle(files)


def _builds_on(init: Path) -> tuple[str, ...]:
    """Return the other extensions that one builds on, as its `BUILDS_ON` declares."""
    for node in tree_of(init).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="BUILDS_ON")], value=value):
                return ast.literal_eval(value)
    return ()


def _problem(module: str, target: str, extensions: Set[str]) -> str:
    ours, theirs = module.split("."), target.split(".")
    if ours[0] == ISOLATION:
        return "" if theirs[0] in sys.stdlib_module_names else "standard library only"
    heavy = "torch" if _under(target, PULLS_TORCH) else theirs[0]
    heavy = CHAT_PARSING if _under(target, (CHAT_PARSING,)) else heavy
    if heavy in ALLOWED:
        where = ".".join(ours[1:]) if ours[0] == FACADE else "a plugin"
        where = module if ours[0] in extensions else where
        fits = any(fnmatch(where, pattern) for pattern in ALLOWED[heavy].split())
        return "" if fits else f"{heavy} only in {ALLOWED[heavy]}"
    if theirs[0] in {*PLUGINS.values(), *extensions}:
        return "" if ours[0] == theirs[0] else "nothing imports plugins and extensions"
    if theirs[0] != FACADE or len(theirs) == 1:
        return ""
    if ours[0] in extensions:
        hidden = theirs[1] == "cli" and (len(theirs) < 3 or theirs[2] not in CLI_FOR_EXTENSIONS)
        return "not one of the modules of cli for extensions" if hidden else ""
    if ours[0] != FACADE:
        return "" if theirs[1] in FOR_PLUGINS else "not one of the packages for plugins"
    if len(ours) == 1:  # the facade: names others, on first use
        return ""
    return _upward(ours[1], theirs[1])


def _upward(room: str, other: str) -> str:
    if room == other or room not in LEVEL or other not in LEVEL or LEVEL[other] < LEVEL[room]:
        return ""
    if LEVEL[other] == LEVEL[room]:
        return "same floor: a package above introduces them"
    return "upward: only floors below may be imported"


def _under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _cycle(files: Mapping[str, Path]) -> list[str]:
    graph = {
        module: ({t for _, t in imports(module, files, listed=False)} & files.keys())
        - {module, FACADE}
        for module in files
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"import cycle: {' -> '.join(reversed(error.args[1]))}"]
    return []


@pytest.mark.slow
def test_imports_go_one_way():
    assert violations(ROOT) == []


MOST_PAST = 294
"""The number of names that are imported past the `__init__` of their package; it may only fall."""


def past_packages(root: Path) -> dict[str, bool]:
    """Return the names that code outside of a package of ours imports from one of its modules, each
    with whether the package lists it."""
    files = sources(root)
    found: dict[str, bool] = {}
    for module in files:
        for _, base, name in imported(module, files):
            top = ".".join(base.split(".")[:2])
            if not base.startswith(f"{FACADE}.") or f"{module}.".startswith(f"{top}."):
                continue
            if base != top or f"{base}.{name}" in files:
                listed = _listed(top, files[top]) if top in files else {}
                found[f"{base}.{name}".rstrip(".")] = listed.get(name) == base
    return found


@pytest.mark.slow
def test_packages_are_imported_by_their_interface():
    """A name that a package lists comes from the package; few others are used outside of it."""
    found = past_packages(ROOT)
    assert [name for name, listed in found.items() if listed] == []
    assert len(found) <= MOST_PAST, sorted(found)


# --- the test itself: every rule must notice a planted violation

CLEAN = {
    "agentgym_rl/__init__.py": (
        "if 0:\n    from .gym.env import Env\n    from agentgym_rl.run.go import go"
    ),
    "agentgym_rl/core/errors.py": "",
    "agentgym_rl/gym/env.py": "from agentgym_rl.core.errors import ArlError",
    "agentgym_rl/run/go.py": "from agentgym_rl import __version__\nfrom ..gym.env import Env",
    "agentgym_rl/gateway/__init__.py": "if 0:\n    from .app import App as App",
    "agentgym_rl/cli/__init__.py": "if 0:\n    from .main import main_of as main_of",
    "agentgym_rl/cli/main.py": "",
    "agentgym_rl/gateway/app.py": "from . import sessions\nfrom ..core.errors import ArlError",
    "agentgym_rl/gateway/sessions.py": "",
    "agentgym_rl/algo/__init__.py": "import torch",
    "envs/arl_envs/__init__.py": "",
    "envs/arl_envs/math.py": "from agentgym_rl import Env\nfrom . import words",
    "envs/arl_envs/words.py": "from agentgym_rl.core.errors import EnvError",
    "agents/arl_agents/react.py": "from agentgym_rl.gym.env import Env",
    "arl_isolation/locks.py": "import ctypes",
    "agentgym_rl/cli/command.py": "",
    "extensions/arl_plan/__init__.py": "",
    "extensions/arl_plan/plan.py": (
        "from agentgym_rl.cli.command import Command\nfrom agentgym_rl.run.go import go\n"
        "from . import plan"
    ),
}

ENV, GO = "agentgym_rl/gym/env.py", "from agentgym_rl.run.go import go"
PLANTED = {
    "upward": (ENV, "from ..run.go import go", "upward"),
    "absolute": (ENV, "import agentgym_rl.run.go", "upward"),
    "lazy": (ENV, "def f():\n    from agentgym_rl.run import go", "upward"),
    "type_checking": (ENV, f"if TYPE_CHECKING:\n    {GO}", "upward"),
    "by_string": (ENV, "importlib.import_module('agentgym_rl.run.go')", "upward"),
    "by_interface": ("agentgym_rl/core/errors.py", "from ..gateway import App", "upward"),
    "cycle_by_interface": ("agentgym_rl/gateway/sessions.py", "from . import App", "cycle"),
    "cli_by_interface": (
        "extensions/arl_plan/plan.py",
        "from agentgym_rl.cli import main_of",
        "not one of the modules of cli",
    ),
    "by_public_name": ("agentgym_rl/core/errors.py", "from agentgym_rl import Env", "upward"),
    "same_floor": ("agentgym_rl/models/x.py", "from ..gateway.app import App", "same floor"),
    "cycle": ("agentgym_rl/gateway/sessions.py", "def f():\n    from .app import App", "cycle"),
    "unknown": ("agentgym_rl/novel.py", "", "agentgym_rl.novel stands on no floor: place it"),
    "unknown_room": ("agentgym_rl/annex/x.py", "", "agentgym_rl.annex stands on no floor"),
    "plugin_imported": ("agentgym_rl/run/go.py", "import arl_envs.math", "nothing imports plugins"),
    "plugin_by_plugin": ("agents/arl_agents/react.py", "import arl_envs", "nothing imports"),
    "plugin_reaches_in": (
        "envs/arl_envs/math.py",
        "from agentgym_rl.gateway import app",
        "not one of",
    ),
    "plugin_by_facade": ("envs/arl_envs/math.py", "from agentgym_rl import go", "not one of"),
    "extension_imported": ("agentgym_rl/run/go.py", "import arl_plan", "nothing imports plugins"),
    "extension_by_extension": ("extensions/arl_x/x.py", "import arl_plan.plan", "nothing imports"),
    "extension_reaches_in": (
        "extensions/arl_plan/plan.py",
        "from agentgym_rl.cli import main",
        "not one of the modules of cli",
    ),
    "extension_torch": ("extensions/arl_plan/plan.py", "import torch", "torch only in"),
    "isolation": ("arl_isolation/locks.py", "import numpy", "standard library only"),
    "isolation_of_itself": ("arl_isolation/locks.py", "from . import bpf", "standard library only"),
    "torch": ("agentgym_rl/gateway/app.py", "import torch.nn as nn", "torch only in"),
    "transformers": ("agentgym_rl/run/x.py", "from transformers import AutoModel", "torch only in"),
    "chat_parsing": (
        "agentgym_rl/gateway/app.py",
        "from transformers.utils.chat_parsing import ResponseParser",
        "chat_parsing only in",
    ),
    "safetensors": (
        "agentgym_rl/storage/folder.py",
        "from safetensors import torch",
        "torch only in",
    ),
    "torch_plugin": ("envs/arl_envs/math.py", "import torch", "torch only in"),
    "vllm": ("extensions/arl_plan/probe.py", "from vllm import LLM", "vllm only in"),
    "ray": ("agentgym_rl/cluster/local.py", "import ray", "ray only in"),
}


def _plant(root: Path, tree: Mapping[str, str]) -> Path:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_clean_tree_passes(tmp_path):
    assert violations(_plant(tmp_path, CLEAN)) == []


@cases("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_violation_is_found(tmp_path, planted):
    file, text, complaint = planted
    assert any(complaint in found for found in violations(_plant(tmp_path, CLEAN | {file: text})))


def test_a_name_past_its_package_is_found(tmp_path):
    tree = CLEAN | {"agentgym_rl/core/__init__.py": "if 0:\n    from .errors import A as A"}
    tree |= {"agentgym_rl/gym/env.py": "from ..core.errors import A, B\nfrom ..core import A"}
    found = past_packages(_plant(tmp_path, tree))
    assert found["agentgym_rl.core.errors.A"]
    assert not found["agentgym_rl.core.errors.B"]
    assert "agentgym_rl.core.A" not in found


def test_sources_are_really_read():
    files = sources(ROOT)
    ours = {"agentgym_rl", "agentgym_rl.gym.env", "arl_envs", "arl_agents", "arl_sandboxes"}
    ours |= {"arl_isolation.bpf", "arl_check.check"}
    assert ours <= set(files)
    found = {target for _, target in imports("agentgym_rl.controller.buffer", files)}
    assert "agentgym_rl.config" in found
