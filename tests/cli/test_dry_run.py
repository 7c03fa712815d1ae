"""`--dry-run`: what would be started, and nothing is."""

import asyncio
import json

import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.cli.launching import dry_run
from agentgym_rl.config import load_config


def test_every_process_with_its_command_line(tmp_path):
    keys = {"cluster.allocation": "embedded:d2+fsdp:d2", "rollout.workers": 2}
    text = asyncio.run(dry_run(load_config(None, keys), tmp_path / "run"))
    lines = text.splitlines()
    names = [line.strip() for line in lines[lines.index("processes") + 1 :: 2]]
    assert names == ["engine-0", "engine-1", "trainer-0", "trainer-1", "rollout-0", "rollout-1"]
    assert "2 x rollout of 1 CPU threads, 0 GPUs" in text
    assert "ARL_TOKEN=... " in text
    assert f"--config {tmp_path}/run/config.toml --index 1 --host ADDRESS --port PORT" in text
    assert f"--run {tmp_path}/run" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_script_of_a_job(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--cluster=slurm", f"--run={tmp_path / 'run'}", "--dry-run", "--json"])
    assert not end.value.code
    assert "#SBATCH --nodes=1" in json.loads(capsys.readouterr().out)["script"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_configuration_that_a_run_would_use(tmp_path, capsys):
    argv = ["train", "--preset=dapo", "--steps=3", f"--run={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as end:
        cli.main([*argv, "--dry-run", "--json"])
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == str(tmp_path / "run")
    config = found["config"]
    assert (config["steps"], config["preset"], config["env"]["id"]) == (3, "dapo", "math")
    assert config["trainer"]["learning_rate"] == 3e-4  # fits the size of the bundled model
    assert not (tmp_path / "run").exists()


def test_who_takes_turns_on_the_same_devices(tmp_path):
    keys = {"cluster.allocation": "embedded:d2|fsdp:d2"}
    text = asyncio.run(dry_run(load_config(None, keys), tmp_path / "run"))
    assert "2 x engine + trainer of 2 CPU threads" in text
    assert "engines sleep (level 1) while ranks train" in text


@pytest.mark.slow
def test_the_file_of_each_value(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(
        'steps = 9\n[env]\nid = "math"\n[rollout]\ngroup_size = 8\n'
    )
    (tmp_path / "over.toml").write_text("[rollout]\ngroup_size = 4\n")
    argv = ["train", "--config=base.toml", "--config=over.toml", "--steps=3", "--dry-run"]
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert not end.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "configuration  base.toml, then over.toml"
    assert {
        "  steps = 3   (flags)",
        '  env.id = "math"   (base.toml)',
        "  rollout.group_size = 4   (over.toml)",
    } <= set(lines)
