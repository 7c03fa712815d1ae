"""The kernel without the folder `extensions/`: what is there works, and what is not is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pydantic
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentgym_rl", "arl_isolation", "envs", "agents", "sandboxes")
KERNEL_COMMANDS = ["train", "eval", "list", "engine", "trainer"]

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


def python(kernel: Path, *argv: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the copy and the dependencies alone; -S leaves the real checkout out."""
    packages = Path(pydantic.__file__).parents[1]
    paths = [kernel, *(kernel / name for name in ("envs", "agents", "sandboxes")), packages]
    return subprocess.run(
        [sys.executable, "-S", *argv],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        cwd=kernel,
        input=input,
        capture_output=True,
        text=True,
        timeout=240,
    )


EACH = """
import json, os, sys, tempfile
from agentgym_rl import Config, load_config
from agentgym_rl.cli.main import main
from agentgym_rl.run.resume import resumed_config

def run(words):
    sys.argv = ["arl", *words]
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0

def forked(words):
    files = [tempfile.TemporaryFile() for _ in range(2)]
    child = os.fork()
    if not child:
        for number, file in enumerate(files, start=1):
            os.dup2(file.fileno(), number)
        os._exit(run(words))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files:
        file.seek(0)
    return code, *(file.read().decode() for file in files)

print(json.dumps([forked(words) for words in json.load(sys.stdin)]))
"""


def arl(kernel: Path, *argvs: Sequence[str]) -> list[tuple[int, str, str]]:
    """Run `arl` with each of `argvs`; return the exit codes, outputs and errors. Each is a process,
    forked from one that has made the imports."""
    done = python(kernel, "-c", EACH, input=json.dumps(argvs))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_imported_and_has_no_extension(kernel):
    code = "import agentgym_rl, importlib.util; agentgym_rl.Config; "
    code += "print(importlib.util.find_spec('arl_plan'))"
    done = python(kernel, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("None\n")


def test_no_command_is_listed_that_cannot_run(kernel):
    shown = python(kernel, "-m", "agentgym_rl", "--help").stdout
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted(set(KERNEL_COMMANDS) - {"engine", "trainer"})
    assert set(re.findall(r"^  arl (\w+)", shown, re.MULTILINE)) <= set(listed)
    assert "BROKEN" not in shown
    for code, _, err in arl(kernel, *([command, "--help"] for command in KERNEL_COMMANDS)):
        assert code == 0, err


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


REFUSALS: dict[str, list[str]] = {
    "agentgym_rl.engines of the extension arl_embedded, which is not installed": [],
    "engine: 'vllm' is a type of the extension arl_vllm": ["--engine=vllm"],
    "rollout.workers is a key of the extension arl_scale": ["--rollout.workers=2"],
    "cluster.type: 'ray' is a type of the extension arl_scale": ["--cluster=ray"],
    "init is a key of the extension arl_warmup": ["--init=sft", "--init.data=rows.jsonl"],
    "gateway.tool_parser: 'glm' is a type of the extension arl_parsers": [
        "--gateway.tool_parser=glm"
    ],
    "gateway.reasoning_parser: 'granite' is a type of the extension arl_parsers": [
        "--gateway.reasoning_parser=granite"
    ],
    "algo.baseline": ["--algo.baseline=critic"],
    "algo.behavior_correction: 'clamp' is a type of the extension arl_objectives": [
        "--algo.behavior_correction={type = 'clamp', floor = 0.1}"
    ],
}


def test_what_is_missing_is_refused_by_name(kernel, tmp_path):
    argv = ["train", "--env=math", "--agent=react", f"--run={tmp_path / 'run'}"]
    (kernel / "rows.jsonl").write_text('{"messages": []}\n')
    engines = [[] if "engine" in refusal else ["--engine=scripted"] for refusal in REFUSALS]
    argvs = zip(engines, REFUSALS.values(), strict=True)
    done = arl(kernel, *([*argv, *engine, *flags] for engine, flags in argvs))
    for refusal, (code, _, err) in zip(REFUSALS, done, strict=True):
        assert code == 2, err
        assert refusal in err
        assert "Traceback" not in err


def test_a_command_of_a_missing_extension_is_refused_by_its_name(kernel):
    commands = ["serve", "inspect", "plan", "new", "doctor", "bench", "ledger", "engines"]
    for command, (code, _, err) in zip(
        commands, arl(kernel, *([it] for it in commands)), strict=True
    ):
        assert code == 2
        assert f"{command!r} is a command of the extension arl_" in err
        assert "which is not installed" in err


MISSING = {
    "rollout.seats.x": ("policy", "rollout.seats", "arl_selfplay"),
    "rollout.concurrency": ("adaptive", "rollout.concurrency", "arl_scale"),
    "rollout.curriculum": ("task", "rollout.curriculum", "arl_objectives"),
    "algo.entropy_coef": (0.1, "algo.entropy_coef", "arl_objectives"),
    "algo.expert_balance_coef": (0.1, "algo.expert_balance_coef", "arl_experts"),
    "algo.kl.coef": (0.1, "algo.kl", "arl_objectives"),
    "algo.reward.scale": (2, "algo.reward", "arl_objectives"),
    "algo.teacher.models": ("bundled/math", "algo.teacher", "arl_objectives"),
    "trainer.critic_learning_rate": (0.1, "trainer.critic_learning_rate", "arl_objectives"),
    "gateway.canary_fraction": (0.5, "gateway.canary_fraction", "arl_meters"),
    "trainer.peak_tflops": (2.0, "trainer.peak_tflops", "arl_meters"),
    "cluster.nodes": (2, "cluster.nodes", "arl_scale"),
    "cluster.allocation": ("scripted:d1+fsdp:d1", "cluster.allocation", "arl_scale"),
    "eval.price_prompt": (2.0, "eval.price_prompt", "arl_endpoints"),
    "logging.plot": (False, "logging.plot", "arl_inspect"),
    "logging.project": ("shop", "logging.project", "arl_trackers"),
    "verifier.timeout_s": (2.0, "verifier", "arl_verifier"),
    "serve.max_sessions": (2, "serve", "arl_serve"),
    "lora.rank": (8, "lora", "arl_lora"),
}
"""Keys of extensions: a value, the name of what an entry point adds, and the extension."""

SET = """
import json, sys, tomllib
from pathlib import Path
import tomli_w
from agentgym_rl import Config, load_config
from agentgym_rl.run.resume import resumed_config

def resumed(file):
    values = load_config(None, {"engine.type": "scripted"}).model_dump(exclude_none=True)
    for section, keys in tomllib.load(open(file, "rb")).items():
        values.setdefault(section, {}).update(keys)
    Path(file).write_text(tomli_w.dumps({"format": 1, **values}))
    return resumed_config(Path(file).parent, None, {})

def refusal(read, file):
    try:
        read(file)
    except ValueError as error:
        return str(error)

ways = {
    "python": lambda file: Config(**tomllib.load(open(file, "rb"))),
    "file": load_config,
    "resumed": resumed,
}
files = json.load(sys.stdin)
print(json.dumps([[f"{how}: {refusal(ways[how], file)}" for how in ways] for file in files]))
"""


def test_a_key_of_a_missing_extension_is_refused_by_its_name(kernel, tmp_path):
    files: list[str] = []
    flags: list[list[str]] = []
    expected: list[str] = []
    for key, (value, name, package) in MISSING.items():
        section, _, rest = key.partition(".")
        folder = tmp_path / key
        folder.mkdir()
        files.append(str(folder / "config.toml"))
        text = f"[{section}]\n{rest} = {json.dumps(value)}\n[engine]\ntype = 'scripted'\n"
        (folder / "config.toml").write_text(text)
        flags.append(["train", "--engine=scripted", f"--{key}={value}", f"--run={folder / 'run'}"])
        expected.append(f"{name} is a key of the extension {package}, which is not installed")
    for said, (code, _, err) in zip(expected, arl(kernel, *flags), strict=True):
        assert (code, said in err) == (2, True), err
    done = python(kernel, "-c", SET, input=json.dumps(files))
    assert done.returncode == 0, done.stderr
    for said, found in zip(expected, json.loads(done.stdout), strict=True):
        assert [text for text in found if said not in text] == []
