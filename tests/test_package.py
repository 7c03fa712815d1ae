"""The package as installed: light to import, whole in the wheel, its plugins found."""

import ast
import importlib
import importlib.util
import io
import json
import re
import resource
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentgym_rl
from agentgym_rl.core import entry_points_of
from agentgym_rl.core.extensions import PREFIX
from agentgym_rl.gym import registry
from agentgym_rl.runtime import import_object
from agentgym_rl.runtime.log import OURS
from tests.docs.blocks import load_script
from tests.docs.test_english import ODD
from tests.kit.cases import cases

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentgym_rl"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("pydantic", "torch", "transformers", "openai", "litellm", "vllm", "ray", "matplotlib")
START_LIMIT_S = 0.5

POINTS = {
    (group, name): value
    for group, points in PYPROJECT["project"]["entry-points"].items()
    if group.startswith("agentgym_rl.")
    for name, value in points.items()
}

EXTENSIONS = sorted(folder.name for folder in (ROOT / "extensions").glob("arl_*"))
KINDS: dict[str, registry.Kind] = {
    "agentgym_rl.envs": "env",
    "agentgym_rl.agents": "agent",
    "agentgym_rl.sandboxes": "sandbox",
}

TORCH_FREE = [
    *("run.train", "rollout.producer", "rollout.episode", "evaluate.evaluate"),
    *("controller.controller", "gateway.server.gateway", "storage.weights_folder"),
]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(code: str) -> set[str]:
    loaded = json.loads(run(f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"))
    return {name.partition(".")[0] for name in loaded}


def seconds(argv: list[str]) -> float:
    """CPU seconds, best of three, interpreter start included; wall time counts the neighbours."""
    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent)
    return best


def test_import_is_light():
    assert imported_by("import agentgym_rl").isdisjoint(HEAVY)


def test_import_is_fast():
    assert seconds([sys.executable, "-c", "import agentgym_rl"]) < START_LIMIT_S


HELP = "from agentgym_rl.cli.main import main; import sys; sys.argv = ['arl', '--help']"


def test_help_is_light():
    """It needs no asyncio either: that takes as long as finding the commands of all packages."""
    code = f"import contextlib, io\n{HELP}\n"
    code += (
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()"
    )
    assert imported_by(code).isdisjoint({*HEAVY, "asyncio"})


@pytest.mark.slow
def test_help_is_fast():
    assert seconds([sys.executable, "-c", f"{HELP}; main()"]) < START_LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_rollout_side_is_torch_free(module):
    assert "torch" not in imported_by(f"import agentgym_rl.{module}")


def test_the_verifiers_processes_import_no_numpy():
    """Each pool waits for these imports, and each new fork server makes them again."""
    inside = "arl_verifier.inside"
    assert "numpy" not in imported_by(f"import {inside}.fork_server")


@cases("name", agentgym_rl.__all__)
def test_public_names_exist(name):
    assert getattr(agentgym_rl, name) is not None


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = agentgym_rl.nonsense


@cases("folder", ["envs", "agents", "sandboxes"])
def test_plugin_folders_are_plain(folder):
    """A package called `agents` would shadow the one of the OpenAI Agents SDK."""
    assert (ROOT / folder / f"arl_{folder}" / "__init__.py").exists()
    assert not list((ROOT / folder).glob("*.py"))
    assert folder not in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@cases("group, name", POINTS, ids=[f"{group}:{name}" for group, name in POINTS])
def test_entry_points_resolve(group, name):
    if (kind := KINDS.get(group)) is None:
        assert import_object(POINTS[group, name]) is not None
        return
    found = registry.spec(POINTS[group, name], kind=kind)
    assert found.id in (name, found.entry_point)
    found.load()


@cases("group, name", POINTS, ids=[f"{group}:{name}" for group, name in POINTS])
def test_entry_points_are_installed(group, name):
    """When this fails alone, the install is older than pyproject.toml: install again."""
    short = group.removeprefix(PREFIX)
    assert entry_points_of(short)[name].value == POINTS[group, name]
    if kind := KINDS.get(group):
        assert registry.spec(name, kind=kind).id == name


def test_the_logs_show_every_package_of_ours():
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = set(wheel["packages"]) - set(wheel["sources"])
    assert {path.rpartition("/")[2] for path in packages} == set(OURS)


def test_version_is_said_once():
    assert agentgym_rl.__version__ == PYPROJECT["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> list[str]:
    """The paths inside a freshly built wheel; needs no network."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed (`make test` installs it)")
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return archive.namelist()


@pytest.mark.slow
def test_the_wheel_holds_the_kernel_the_plugins_and_the_extensions(wheel):
    tops = {path.partition("/")[0] for path in wheel}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    plugins = {"arl_envs", "arl_agents", "arl_sandboxes"}
    assert packages == {"agentgym_rl", "arl_isolation", *plugins, *EXTENSIONS}


@pytest.mark.slow
def test_the_wheel_is_whole(wheel):
    sources = {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py")}
    assert sources <= set(wheel)
    assert any(path.endswith("/licenses/LICENSE") for path in wheel)


@pytest.mark.slow
def test_the_wheel_carries_types_pages_and_examples(wheel):
    tops = {path.partition("/")[0] for path in wheel}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert {f"{package}/py.typed" for package in packages} <= set(wheel)
    shipped = {f"arl_start/{page.relative_to(ROOT)}" for page in (ROOT / "docs").rglob("*.md")}
    tracked = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, capture_output=True)
    shipped |= {f"arl_start/{name}" for name in tracked.stdout.decode().split()}
    assert len(shipped) > 50
    assert shipped <= set(wheel)
    assert not [path for path in wheel if path.endswith((".png", ".csv")) and "arl_start" in path]


def test_the_text_of_the_package_s_page_has_no_dead_link():
    text = load_script("package_page").page_of((ROOT / "README.md").read_text())
    links = re.findall(r"\]\(([^()]*)\)|<(?:img|a)\b[^>]*(?:src|href)=\"([^\"]*)", text)
    assert [link for pair in links for link in pair if link and "://" not in link] == []
    assert "[Installation](docs" not in text
    assert "Installation (`arl docs install`)" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("tiny", "tiny-tools", "tiny-frozenlake", "tiny-code", "tiny-bugs", "tiny-agents"),
        "tiny-tictactoe",
    ],
)
def test_the_wheel_carries_the_tiny_models(wheel, name):
    files = {p.name for p in (PACKAGE / "models" / name).iterdir() if p.is_file()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files
    assert {f"agentgym_rl/models/{name}/{file}" for file in files} <= set(wheel)


def test_the_list_of_what_runs_without_torch_is_that_of_the_project():
    """LiteLLM's Python has what the package needs, apart from what an evaluation does without."""
    lines = (ROOT / "requirements" / "litellm.txt").read_text().splitlines()
    theirs = {line for line in lines if line and not line.startswith(("#", "litellm["))}
    ours = set(PYPROJECT["project"]["dependencies"])
    names = {line.partition(">")[0] for line in ours - theirs}
    assert theirs - ours == set()
    assert names == {"accelerate", "matplotlib", "torch", "transformers"}


IMPORTED_AS = {"math-verify": "math_verify", "pyyaml": "yaml", "tomli-w": "tomli_w"}
FOR_TRANSFORMERS = {"accelerate"}
"""The dependencies that transformers imports for us, as it loads a model on the device "meta"."""


def test_the_product_imports_each_of_its_dependencies():
    found = set()
    for folder in ("agentgym_rl", "envs", "agents", "sandboxes", "extensions"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(str(node.module).partition(".")[0])
    listed = {re.split(r"[^\w-]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    assert {IMPORTED_AS.get(name, name) for name in listed} - found == FOR_TRANSFORMERS


def test_what_runs_inside_vllm_needs_only_what_vllm_has():
    """Its worker imports these, and a publication of its own transport; it has few of our needs."""
    inside = ROOT / "extensions" / "arl_vllm"
    lines = {
        ast.unparse(node)
        for name in ("transfer", "staging", "swap")
        for node in ast.walk(ast.parse((inside / f"{name}.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith(("agentgym_rl.", "arl_gloo."))
    }
    names = ("arl_vllm.staging", "agentgym_rl.weights.publish", "arl_vllm.native")
    lines |= {f"import {name}" for name in names}
    assert len(lines) > 4
    listed = {re.split(r"[^\w-]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    ours = {name.replace("-", "_") for name in listed}
    loaded = imported_by("\n".join(sorted(lines)))
    assert loaded & ours <= {"torch", "safetensors", "numpy", "jinja2"}


FOLDERS = (
    *("agentgym_rl", "envs/arl_envs", "agents/arl_agents", "sandboxes/arl_sandboxes"),
    *(f"extensions/{name}" for name in EXTENSIONS),
)
NAMED_FILE = re.compile(r"(?<![\w/.{$-])((?:\w+/)*\w+\.py)\b")


def named_files(file: Path) -> Iterator[str]:
    """The files that a module's docstrings and its comments name, such as `trainer/step.py`."""
    source = file.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from NAMED_FILE.findall(ast.get_docstring(node) or "")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from NAMED_FILE.findall(token.string)


@pytest.mark.slow
def test_every_file_that_the_code_names_is_there():
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for name in named_files(file)
        if not any(
            (base / name).exists()
            for base in (file.parent, ROOT, ROOT / "extensions", *(ROOT / f for f in FOLDERS))
        )
    ]
    assert missing == []


ODD_START = re.compile(rf"({ODD}|How|Why|In|It)\b")
ODD_ALLOWED = {
    **dict.fromkeys(("agentgym_rl", "agents", "sandboxes", "arl_isolation", "extensions"), 0),
    "envs": 3,
}
"""The number of docstrings with an odd first word; it may only fall. The three of `envs` are task
texts, which a model reads."""


def test_no_further_docstring_begins_with_a_pronoun_or_a_preposition():
    for folder, allowed in ODD_ALLOWED.items():
        odd = [
            f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
            for file in (ROOT / folder).rglob("*.py")
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if ODD_START.match(ast.get_docstring(node) or "")
        ]
        assert len(odd) <= allowed, odd


MOST_NAMES, MOST_SMALL, SMALL_LINES = 25, 25, 60
MOST_WHOLE_CONFIG = 41
NOT_NAMES = ("__pycache__", "__init__.py", "__main__.py", "py.typed")


def test_the_package_stays_easy_to_survey():
    """The limits of the names at the top, and of files under 60 lines."""
    names = [entry.name for entry in PACKAGE.iterdir() if entry.name not in NOT_NAMES]
    files = list(PACKAGE.rglob("*.py"))
    small = [
        file
        for file in files
        if file.name != "__init__.py" and len(file.read_text().splitlines()) < SMALL_LINES
    ]
    assert len(names) <= MOST_NAMES, names
    assert len(small) <= MOST_SMALL, sorted(map(str, small))


REGISTERED = {"Cluster", "EndpointKind", "ProducerKind", "_Conflicting"}
"""The contracts of what extensions register: which keys are theirs, only they know."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods in `tree`, without those of `REGISTERED` contracts."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if {node.name, *bases} & REGISTERED:
                continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        yield from functions(node)


MOST_LINES = {
    ".": 100,
    "algo": 2_500,
    "arl_audit": 3_150,
    "arl_callbacks": 200,
    "arl_check": 3_650,
    "arl_data": 1_500,
    "arl_dialects": 2_200,
    "arl_embedded": 4_500,
    "arl_endpoints": 1_450,
    "arl_experts": 400,
    "arl_gloo": 500,
    "arl_inspect": 3_200,
    "arl_lora": 650,
    "arl_megatron": 500,
    "arl_meters": 500,
    "arl_notebook": 500,
    "arl_objectives": 2_900,
    "arl_optimizers": 400,
    "arl_parallel": 1_200,
    "arl_parsers": 1_800,
    "arl_plan": 4_650,
    "arl_scale": 4_350,
    "arl_selfplay": 800,
    "arl_serve": 850,
    "arl_sglang": 1_750,
    "arl_start": 600,
    "arl_terminal": 750,
    "arl_trackers": 250,
    "arl_trial": 1_350,
    "arl_varlen": 300,
    "arl_verifier": 1_750,
    "arl_vllm": 1_800,
    "arl_warmup": 1_650,
    "cli": 1_900,
    "cluster": 1_350,
    "config": 2_300,
    "controller": 1_400,
    "core": 4_750,
    "engines": 3_750,
    "evaluate": 1_800,
    "fleet": 1_150,
    "gateway": 9_750,
    "gym": 5_150,
    "models": 700,
    "report": 650,
    "rollout": 2_350,
    "run": 2_500,
    "runtime": 2_750,
    "storage": 2_950,
    "trainer": 6_150,
    "weights": 2_500,
}
"""The lines that each package of `agentgym_rl` ("." has the other files) and each extension may
have: what it had, rounded up to the next 50. `python -m tests.test_package` prints the table as it
would be today."""


def lines_by_package() -> dict[str, int]:
    found: Counter[str] = Counter()
    for root in (PACKAGE, ROOT / "extensions"):
        for file in root.rglob("*.py"):
            folder, _, rest = str(file.relative_to(root)).partition("/")
            found[folder if rest else "."] += len(file.read_text().splitlines())
    return dict(sorted(found.items()))


def ceiling(lines: int) -> int:
    return -(-lines // 50) * 50


def test_no_package_outgrows_its_ceiling():
    found = lines_by_package()
    above = [
        f'"{name}": {ceiling(lines):_},  has {lines:,} lines, its ceiling is {MOST_LINES[name]:,}'
        for name, lines in found.items()
        if lines > MOST_LINES.get(name, lines)
    ]
    assert above == [], (
        "a package has outgrown its ceiling: take lines out, or raise it in MOST_LINES in the "
        "commit that needs it, with the reason in its message"
    )
    assert found.keys() == MOST_LINES.keys(), "each package has one ceiling in MOST_LINES"


MOST_KEYS = 149
"""The keys that the kernel itself declares, each type of a section counted; it may only fall."""


def keys_of(model: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys of a section, each with the package that declares it."""
    from agentgym_rl.config import fields_of, section_types

    for name, field in fields_of(model).items():
        owner = next((part for part in model.added if name in part.model_fields), model)
        kinds = section_types(field)
        if not kinds:
            yield f"{prefix}{name}", owner.__module__.partition(".")[0]
        for kind in kinds:
            yield from keys_of(kind, f"{prefix}{name}.")


def test_no_further_key_is_declared_in_the_kernel():
    from agentgym_rl.config import Config

    found = Counter(owner for _, owner in keys_of(Config))
    assert found["agentgym_rl"] <= MOST_KEYS, (
        "a key of an optional feature belongs to its package (docs/extensions.md#keys)"
    )


def test_few_functions_are_given_the_complete_configuration():
    """A function takes the section that it uses; some put a run together from all sections."""
    whole = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in functions(ast.parse(file.read_text()))
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Config"
    ]
    assert len(whole) <= MOST_WHOLE_CONFIG, whole


LAZY = [
    ".".join(file.parent.relative_to(ROOT).parts)
    for file in sorted(PACKAGE.rglob("__init__.py"))
    if "lazy_names(" in file.read_text()
]


@cases("package", LAZY)
def test_type_checkers_see_the_names_that_load_on_first_use(package):
    """No name is that of a module, which its import would put into the place of the name, but for
    `agentgym_rl.evaluate`: that package can be called."""
    init = importlib.import_module(package)
    block = next(
        n for n in ast.parse(Path(init.__file__).read_text()).body if isinstance(n, ast.If)
    )
    seen = {
        alias.asname
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    declared = {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}
    assert seen - {None} | declared == set(init.__all__) - {"__version__"}
    assert all(init.__getattr__(name) is not None for name in seen - {None})
    modules = {path.stem for path in Path(init.__file__).parent.iterdir()}
    assert seen & modules <= ({"evaluate"} if package == "agentgym_rl" else set())


def test_plugins_import_public_names_from_the_package():
    deep = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {alias.name} of {node.module}"
        for folder in ("envs", "agents", "sandboxes")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("agentgym_rl.")
        for alias in node.names
        if alias.name in agentgym_rl.__all__
    ]
    assert deep == []


if __name__ == "__main__":
    print("\n".join(f'    "{name}": {ceiling(n):_},' for name, n in lines_by_package().items()))
