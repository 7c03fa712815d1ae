"""`arl new env`: what it writes installs, keeps the contract, and trains."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from arl_check.scaffold import new_env, new_task

from agentgym_rl import check_env, make, spec
from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    monkeypatch.delitem(sys.modules, "corner_shop", raising=False)  # of the test before
    folder = tmp_path / "corner_shop"
    new_env("corner_shop", folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_its_files(package):
    written = sorted(file.name for file in package.iterdir())
    assert written == ["README.md", "corner_shop.py", "pyproject.toml", "test_corner_shop.py"]
    assert not any("$" in file.read_text() for file in package.iterdir())


def test_the_environment_plays(package):
    async def play() -> tuple[str, float]:
        env = make("corner_shop:CornerShop")
        await env.reset(seed=1)
        (answer,) = env.solve() or ()
        return answer["content"], (await env.step(answer)).reward

    answer, reward = asyncio.run(play())
    assert (answer.isalpha(), reward) == (True, 1.0)


@pytest.mark.slow
def test_it_passes_the_check(package):
    report = asyncio.run(check_env("corner_shop:CornerShop"))
    assert report.passed, str(report)


def test_a_task_in_harbors_format(tmp_path):
    folder = tmp_path / "totals"
    new_task("totals", folder)
    task = spec(f"harbor:{folder}").task_source("train", seed=0)[0]
    assert task.data["name"] == "totals"
    solve = folder / "solution/solve.sh"
    assert "n[$2] += $3" in solve.read_text()
    assert os.access(solve, os.X_OK)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_task_passes_the_check(tmp_path):
    folder = tmp_path / "totals"
    new_task("totals", folder)
    report = asyncio.run(check_env(f"harbor:{folder}", episodes=1))
    assert report.passed, str(report)


def test_a_task_is_written_by_the_command(tmp_path, capsys):
    folder = tmp_path / "totals"
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["new", "env", "--harbor", "totals", "--into", str(folder)])
    assert f"next: arl check harbor:{folder}" in capsys.readouterr().out


@pytest.mark.slow
def test_it_installs(package, tmp_path):
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(package)], check=True, timeout=120)
    listed = subprocess.run(
        [sys.executable, "-m", "agentgym_rl", "list", "--json"],
        env={"PYTHONPATH": f"{target}:{ROOT}", "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    rows = {row["id"]: row for row in json.loads(listed.stdout)["rows"]}
    assert rows["corner_shop-v0"]["error"] == ""


@pytest.mark.slow
def test_it_trains_at_once(package, tmp_path):
    command = [sys.executable, "-m", "agentgym_rl", "train", "--env", "corner_shop:CornerShop"]
    small = ["--steps", "1", "--eval.num_tasks=4", "--json", f"--run={tmp_path / 'run'}"]
    done = subprocess.run([*command, *small], cwd=package, capture_output=True, timeout=240)
    assert json.loads(done.stdout)["steps"] == 1


@cases("name", ["", "Shop", "my-env", "7up", "class", "a b", "../x"])
def test_names_that_are_none(name, tmp_path):
    with pytest.raises(ConfigError, match="lower-case"):
        new_env(name, tmp_path / "x")


@cases(
    "name, said",
    [
        ("none", "its class would be None"),
        ("true", "its class would be True"),
        ("random", "Python's own module random"),
        ("agentgym_rl", r"a module of that name, .*agentgym_rl"),
        ("arl_envs", r"a module of that name, .*arl_envs"),
        ("pytest", r"a module of that name, .*pytest"),
        ("tools", r"tools-v0 is there \(`arl list`\); try my_tools"),
    ],
)
def test_names_that_are_taken(name, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        new_env(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.py").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        new_env("shop", tmp_path)


def test_the_command_says_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["new", "env", "shop"])
    assert ended.value.code == 0
    assert "arl check shop" in capsys.readouterr().out
    assert Path("shop/shop.py").exists()


def test_a_hyphen_becomes_an_underscore_and_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["new", "env", "my-shop"])
    assert not end.value.code
    out = capsys.readouterr().out
    assert out.startswith("my-shop is named my_shop: a Python module's name has no hyphen\n")
    assert (tmp_path / "my_shop" / "my_shop.py").exists()
