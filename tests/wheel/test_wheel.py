"""A user of the wheel, in an empty folder: everything of the first day works without a clone."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from agentgym_rl.cli.registry import command_names
from agentgym_rl.config import Config, load_config

ROOT = Path(__file__).parents[2]
OF_A_CLONE = re.compile(r"\bdocs/[\w/-]+\.md|\bexamples/\w+\.\w+|\brequirements/|\bmake [a-z]+-\w+")
ALL_HELP = """
import contextlib, io, json
from agentgym_rl.cli.main import main
from agentgym_rl.cli.registry import command_names
said = {}
for name in command_names():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([name, "--help"])
    said[name] = out.getvalue()
print(json.dumps(said))
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_the_package_is_that_of_the_wheel(run, python):
    code = "import agentgym_rl, arl_start; print(agentgym_rl.__file__, arl_start.__file__)"
    for file in run("python", "-c", code).stdout.split():
        assert Path(file).is_relative_to(python.parents[1])


def test_a_missing_extra_is_installed_from_the_wheel(run, wheel):
    code = "from agentgym_rl.core import install_command; print(install_command('mcp'))"
    assert run("python", "-c", code).stdout == (
        f"pip install 'agentgym-rl[mcp] @ {wheel.as_uri()}'\n"
    )


def test_train_evaluate_show_and_export(run, tmp_path):
    small = ("--eval.num_tasks=16", "--rollout.groups_per_batch=2")
    run("arl", "train", "--env", "math", "--agent", "react", "--steps=2", "--run=first", *small)
    assert (tmp_path / "first/reward.png").exists()
    found = json.loads(run("arl", "eval", "--run=first", "--json").stdout)
    assert found["num_episodes"] == 16
    run("arl", "inspect", "first", "--html", "first.html")
    assert "<html" in (tmp_path / "first.html").read_text()
    run("arl", "export", "--sft", "first", "--out", "rows.jsonl", "--min-reward=0")
    assert (tmp_path / "rows.jsonl").read_text()


def test_check(run):
    assert "math-v0 passes" in run("arl", "check", "math").stdout


def test_a_new_environment_installs_and_passes(run, python, tmp_path):
    said = run("arl", "new", "env", "corner_shop").stdout
    assert "next: pip install -e corner_shop && arl check corner_shop" in said
    pip = ("-m", "pip", "install", "-q", "--no-build-isolation", "--no-index", "-e", "corner_shop")
    run("python", *pip)
    try:
        rows = json.loads(run("arl", "list", "--json").stdout)["rows"]
        assert [row["error"] for row in rows if row["id"] == "corner_shop-v0"] == [""]
        assert "corner_shop-v0 passes" in run("arl", "check", "corner_shop").stdout
    finally:
        run("python", "-m", "pip", "uninstall", "-q", "-y", "arl-corner_shop")


def test_the_configuration(run, tmp_path):
    text = run("arl", "config").stdout
    (tmp_path / "my.toml").write_text(text)
    assert load_config(tmp_path / "my.toml") == Config()
    shown = run("arl", "config", "rollout.max_staleness", "--config", "my.toml", "--preset=dapo")
    assert tomllib.loads(shown.stdout)["rollout"].keys() == {"max_staleness"}


def test_the_examples(run, tmp_path):
    names = json.loads(run("arl", "examples", "--json").stdout)["examples"]
    assert {entry.name for entry in (ROOT / "examples").iterdir()} - {"__pycache__"} <= set(names)
    run("arl", "examples", "math.toml", "own_env.py", "--out", "mine")
    run("arl", "train", "--config", "mine/math.toml", "--dry-run")


def test_the_pages(run):
    pages = json.loads(run("arl", "docs", "--json").stdout)["pages"]
    assert len(pages) == len(list((ROOT / "docs").rglob("*.md")))
    text = run("arl", "docs", "install#extras").stdout
    assert text.startswith("## Extras\n")
    assert "arl docs cluster" in text
    assert run("arl", "docs", "--search", "reward function").stdout.startswith("arl docs ")


def test_no_help_and_no_finding_names_a_file_of_the_clone(run):
    said = json.loads(run("python", "-c", ALL_HELP).stdout)
    assert said.keys() == set(command_names())
    said["doctor's findings"] = run("arl", "doctor").stdout
    said["no vLLM"] = run("arl", "train", "--engine=vllm", "--dry-run", code=2).stderr
    wrong = {name: found[0] for name, text in said.items() if (found := OF_A_CLONE.search(text))}
    assert wrong == {}


def test_type_checkers_read_the_types(run, python, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from agentgym_rl import Config\n\nreveal_type(Config().steps)\n"
    )
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = run("python", "-m", "pyright", "--pythonpath", str(python), "--outputjson")
    (found,) = json.loads(done.stdout)["generalDiagnostics"]
    assert found["message"] == 'Type of "Config().steps" is "int"'
