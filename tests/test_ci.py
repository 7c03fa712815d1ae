"""The suites that `.ci/run` chooses: each rests on what is there, and a change finds its suites."""

import os
import re
import shutil
import subprocess
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


@cases(
    "path, suites",
    {
        "README.md": "",
        "docs/vllm.md": "",
        "docs/sglang.md": "",
        "CHANGELOG.md": "",
        "tests/algo/test_kl.py": "",
        "tests/envs/math/test_judge.py": "envs",
        "agentgym_rl/algo/kl.py": "peers",
        "agentgym_rl/trainer/step.py": "",
        "extensions/arl_inspect/serve.py": "programs",
        "agentgym_rl/__init__.py": "",
        "envs/arl_envs/math/env.py": "envs",
        "requirements/gem.txt": "",
        "agentgym_rl/core/task.py": "envs programs docker agents peers vllm sglang",
        "agentgym_rl/gym/env.py": "envs programs docker agents peers vllm sglang",
        "agentgym_rl/runtime/http_client.py": "envs programs docker agents peers vllm sglang",
        "sandboxes/arl_sandboxes/docker/container.py": "envs docker",
        "sandboxes/arl_sandboxes/gone.py": "envs docker",
        "arl_isolation/bpf.py": "envs docker",
        "envs/arl_envs/code/env.py": "envs docker",
        "envs/arl_envs/harbor/env.py": "envs docker",
        "scripts/dockerd.py": "programs docker",
        "tests/security/test_hacks.py": "envs docker",
        "tests/contracts/sandboxes.py": "envs docker",
        "tests/contracts/test_sandbox_reset.py": "envs docker",
        "tests/contracts/test_env.py": "envs",
        "tests/contracts/rewarded.py": "envs",
        "tests/contracts/test_agent.py": "agents",
        "tests/contracts/test_engine.py": "vllm sglang",
        "tests/gym/check/toys.py": "envs",
        "tests/e2e/forked.py": "envs docker",
        "agentgym_rl/cli/commands/list.py": "envs programs",
        "extensions/arl_check/check.py": "envs programs",
        "agentgym_rl/rollout/groups.py": "programs",
        "benchmarks/env.py": "programs",
        "tests/programs/test_scripts.py": "programs",
        "agentgym_rl/config/rollout.py": "envs",
        "agents/arl_agents/command/agent.py": "agents peers",
        "agentgym_rl/gateway/session/tree.py": "agents peers",
        "agentgym_rl/gateway/parsers/formats.py": "agents peers vllm sglang",
        "examples/node_agent/agent.mjs": "agents",
        "requirements/agents.txt": "agents",
        "envs/arl_envs/openenv/env.py": "envs peers",
        "envs/arl_envs/verifiers/bridge.py": "envs peers",
        "requirements/litellm.txt": "peers",
        "agentgym_rl/config/algo_terms.py": "envs peers",
        "scripts/peers/cases.py": "programs peers",
        "tests/litellm_engine/test_litellm.py": "peers",
        "agentgym_rl/weights/transport.py": "vllm sglang",
        "extensions/arl_vllm/plugin.py": "programs vllm",
        "agentgym_rl/engines/client/client.py": "vllm sglang",
        "requirements/vllm-cpu.txt": "vllm",
        "examples/vllm.toml": "vllm",
        "extensions/arl_sglang/server.py": "programs sglang",
        "requirements/sglang-cpu.txt": "sglang",
        "requirements/sglang-cpu/sgl_kernel/__init__.py": "sglang",
        "examples/sglang.toml": "sglang",
        "tests/e2e/test_exactness.py": "docker vllm",
        "pyproject.toml": "envs programs docker agents peers vllm sglang",
        "Makefile": "envs programs docker agents peers vllm sglang",
        ".ci/run": "envs programs docker agents peers vllm sglang",
        "scripts/ci_suites.py": "envs programs docker agents peers vllm sglang",
        "tests/exhaustive.py": "envs programs docker agents peers vllm sglang",
        "tests/kit/cases.py": "envs programs docker agents peers vllm sglang",
    }.items(),
)
def test_a_changed_path_chooses_its_suites(path, suites):
    assert (ROOT / path).exists() or path.endswith("gone.py")
    assert chosen(path) == {f"test-{name}" for name in suites.split()}


def test_suites_of_several_paths_add_up_and_name_the_first_of_them():
    assert chosen() == set()
    assert chosen("arl_isolation/bpf.py", "README.md", "agentgym_rl/weights/transport.py") == {
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


def test_a_suite_rests_on_what_the_makefile_runs_in_it():
    makefile = (ROOT / "Makefile").read_text()
    tests_of_envs = makefile.split("ENVS_TESTS := ")[1].split("\nWITHOUT_ENVS")[0]
    makefile = makefile.replace("$(ENVS_TESTS)", tests_of_envs)
    for suite, rests_on in ci.RESTS_ON.items():
        recipe = makefile.split(f"\n{suite}:")[1].split("\n\n")[0]
        named = re.findall(r"tests/\S+", recipe)
        assert named
        for path in named:
            path += "" if path.endswith(".py") else "/"
            parts = [path]
            if "-k docker" in recipe and not path.startswith(rests_on):
                parts = with_sandboxes(path)
            assert parts
            assert [part for part in parts if not part.startswith(rests_on)] == []


def with_sandboxes(folder: str) -> list[str]:
    """The files of a folder of tests in which `-k docker` finds any: a backend is their `world`."""
    files = (ROOT / folder).glob("test_*.py")
    return [f"{folder}{file.name}" for file in files if re.search(r"\bworld\b", file.read_text())]


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
    assert here(clone) == CORE | {"test-envs", "test-docker"}


def test_what_is_not_committed_and_both_names_of_a_moved_file_count(clone):
    commit(clone, "docs/a.md")
    (clone / "requirements").mkdir()
    (clone / "requirements/agents.txt").write_text("")
    assert here(clone) == CORE | {"test-agents"}
    git(clone, "mv", "agentgym_rl/weights/transport.py", "docs/transport.py")
    assert here(clone) == CORE | {"test-agents", "test-vllm", "test-sglang"}


def test_main_itself_tells_nothing_unless_the_base_is_said(clone):
    (unknown, *_) = ci.choose_here(clone, {})
    assert unknown.reason.startswith("unknown what changed: HEAD is origin/main; ARL_CI_BASE can")
    assert here(clone) == CORE | FURTHER
    assert here(clone, ARL_CI_BASE="HEAD") == CORE
    assert here(clone, ARL_CI_BASE="HEAD~1") == CORE | {"test-vllm", "test-sglang"}
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
    *("test-envs", "test-docker", "test-agents", "test-peers", "test-vllm", "test-sglang"),
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
    further = ["test-envs", "test-docker", "test-agents", "test-peers", shortened, "test-programs"]
    assert (code, calls[3:]) == (0, further)
    assert said.endswith(", not run: tests/vllm/test_train.py test-sglang\n")
    code, said, calls = run(ARL_EXHAUSTIVE="1", SECONDS="4400")
    assert (code, calls) == (0, ["lint", "docs", "test", "test-peers"])
    assert re.search(r"NOT RUN: test-envs, since it takes 1200 s and (1000|9\d\d) s are left", said)
    left_out = "test-envs test-docker test-agents test-vllm test-sglang test-programs"
    assert said.endswith(f", not run: {left_out}\n")
