"""The kernel without the folder `extensions/`: what is there works, and what is not is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pydantic
import pytest

from tests.kit.cases import cases

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentgym_rl", "arl_isolation", "envs", "agents", "sandboxes")
KERNEL_COMMANDS = ["train", "eval", "runs", "list", "doctor", "engine", "trainer", "bench"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Path:
    """Return a copy of the checkout without extensions, as if it was installed: what they register
    is known, and they are not there."""
    root = tmp_path_factory.mktemp("kernel")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines: list[str] = []
    for group, members in points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in members.items()), ""]
    about = root / "agentgym_rl-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: agentgym-rl\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines))
    return root


def python(kernel: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy and the dependencies alone; -S leaves the real checkout out."""
    packages = Path(pydantic.__file__).parents[1]
    paths = [kernel, *(kernel / name for name in ("envs", "agents", "sandboxes")), packages]
    return subprocess.run(
        [sys.executable, "-S", *argv],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        cwd=kernel,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_it_is_imported_and_has_no_extension(kernel):
    code = "import agentgym_rl, importlib.util; agentgym_rl.Config; "
    code += "print(importlib.util.find_spec('arl_plan'))"
    done = python(kernel, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("None\n")


def test_no_command_is_listed_that_cannot_run(kernel):
    shown = python(kernel, "-m", "agentgym_rl", "--help").stdout
    listed = re.findall(r"^    ([a-z-]+)  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted(KERNEL_COMMANDS)
    assert set(re.findall(r"^  arl (\w+)", shown, re.MULTILINE)) <= set(listed)
    assert "BROKEN" not in shown
    for command in listed:
        done = python(kernel, "-m", "agentgym_rl", command, "--help")
        assert done.returncode == 0, done.stderr


def test_arl_list_lists_environments_agents_and_sandboxes(kernel):
    done = python(kernel, "-m", "agentgym_rl", "list", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {"math-v0", "react-v0", "local"} <= {row["id"] for row in rows}
    assert not [row for row in rows if row.get("error")]


def test_a_run_trains_on_the_scripted_engine(kernel, tmp_path):
    run = tmp_path / "run"
    argv = ["train", "--env=math", "--agent=react", "--engine=scripted", "--steps=1"]
    argv += ["--eval.num_tasks=2", f"--run={run}", "--json"]
    done = python(kernel, "-m", "agentgym_rl", *argv)
    assert done.returncode == 0, done.stderr
    assert (run / "export" / "config.json").exists()


@cases(
    "flags, refusal",
    [
        ([], "agentgym_rl.engines"),
        (["--engine=vllm"], "engine.type"),
        (["--rollout.workers=2"], "rollout.workers is a key of the extension arl_scale"),
        (["--cluster=ray"], "cluster.type"),
        (["--init=sft", "--init.data=rows.jsonl"], "init is a key of the extension arl_warmup"),
        (["--algo.baseline=critic"], "algo.baseline"),
    ],
)
def test_what_is_missing_is_refused_by_name(kernel, tmp_path, flags, refusal):
    argv = ["train", "--env=math", "--agent=react", f"--run={tmp_path / 'run'}"]
    engine = [] if "engine" in refusal else ["--engine=scripted"]
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    done = python(kernel, "-m", "agentgym_rl", *argv, *engine, *flags)
    assert done.returncode == 2, done.stderr
    assert refusal in done.stderr
    assert "Traceback" not in done.stderr


MISSING = {
    "rollout.seats.x": ("policy", "rollout.seats", "arl_selfplay"),
    "rollout.curriculum": ("task", "rollout.curriculum", "arl_objectives"),
    "algo.teacher.models": ("bundled/math", "algo.teacher", "arl_objectives"),
    "trainer.critic_learning_rate": (0.1, "trainer.critic_learning_rate", "arl_objectives"),
    "cluster.nodes": (2, "cluster.nodes", "arl_scale"),
    "cluster.allocation": ("scripted:d1+fsdp:d1", "cluster.allocation", "arl_scale"),
    "eval.price_prompt": (2.0, "eval.price_prompt", "arl_endpoints"),
    "logging.project": ("shop", "logging.project", "arl_trackers"),
    "verifier.timeout_s": (2.0, "verifier", "arl_verifier"),
    "serve.max_sessions": (2, "serve", "arl_serve"),
}
"""Keys of extensions: a value, the name of what an entry point adds, and the extension."""

SET = """
import sys, tomllib
from agentgym_rl import Config, load_config
from agentgym_rl.run.resume import resumed_config
how, file = sys.argv[1:]
if how == "python":
    Config(**tomllib.load(open(file, "rb")))
elif how == "file":
    load_config(file)
else:
    from pathlib import Path
    import tomli_w
    values = load_config(None, {"engine.type": "scripted"}).model_dump(exclude_none=True)
    for section, keys in tomllib.load(open(file, "rb")).items():
        values.setdefault(section, {}).update(keys)
    Path(file).write_text(tomli_w.dumps({"format": 1, **values}))
    resumed_config(Path(file).parent, None, {})
"""


@cases("key", [*MISSING])
def test_a_key_of_a_missing_extension_is_refused_by_its_name(kernel, tmp_path, key):
    value, name, package = MISSING[key]
    said = f"{name} is a key of the extension {package}, which is not installed"
    flag = [f"--{key}={value}", f"--run={tmp_path / 'run'}"]
    done = python(kernel, "-m", "agentgym_rl", "train", "--engine=scripted", *flag)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    section, _, rest = key.partition(".")
    file = tmp_path / "config.toml"
    file.write_text(f"[{section}]\n{rest} = {json.dumps(value)}\n[engine]\ntype = 'scripted'\n")
    for how in ("python", "file", "resumed"):
        done = python(kernel, "-c", SET, how, str(file))
        assert said in done.stderr, f"{how}: {done.stderr}"
