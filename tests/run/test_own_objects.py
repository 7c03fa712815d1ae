"""Classes and functions of scripts: which processes can import them, by which names."""

import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from agentgym_rl import load_config
from agentgym_rl.core import ConfigError, only_here
from agentgym_rl.gym.env_process import ProcessEnv
from agentgym_rl.rollout.config_checks import check_policy
from agentgym_rl.runtime import import_object
from tests.kit.cases import cases

OBJECTS = """
import asyncio, sys
from agentgym_rl import Agent, ToolEnv, train

class Guess(ToolEnv):
    max_turns = 2
    def begin(self, task):
        return [{"role": "user", "content": f"Say {self.random.randrange(9)}"}]
    def finish(self, text):
        return float(len(text) % 2)

class Patient(Agent):
    async def run(self, env, client, *, model, task):
        messages, info = await env.reset()
        reply = await client.chat.completions.create(model=model, messages=messages)
        await env.step({"role": "assistant", "content": reply.choices[0].message.content})

def plain(tokens, log_ratio):
    return log_ratio.exp() * tokens.advantages

def accept(members):
    return True

SMALL = {"steps": 1, "eval.num_tasks": 0, "rollout.groups_per_batch": 2, "rollout.group_size": 2,
         "trainer.num_minibatches": 1, "logging.plot": False, "logging.progress": "none"}

async def main():
    own = {"env": Guess, "agent": Patient, "algo.loss": plain, "rollout.should_accept": accept}
    result = await train(overrides={**SMALL, **own, "run": sys.argv[1]})
    print(sum(result.outcomes.values()))
"""
GUARD = "if __name__ == '__main__':\n    asyncio.run(main())\n"
BARE = "asyncio.run(main())\n"


def script(folder: Path, ending: str) -> Path:
    folder.mkdir()
    file = folder / "guessing.py"
    file.write_text(OBJECTS + ending)
    return file


@pytest.mark.slow
def test_objects_of_a_script_are_found_by_ranks_and_by_other_commands(tmp_path):
    file, run = script(tmp_path / "mine", GUARD), tmp_path / "run"
    command = [sys.executable, file, run]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4
    kept = tomllib.loads((run / "config.toml").read_text())
    assert (kept["env"]["id"], kept["agent"]["id"]) == ("guessing:Guess", "guessing:Patient")
    assert kept["algo"]["loss"] == "guessing:plain"
    code = "from agentgym_rl.evaluate.target import chosen; from agentgym_rl import make\n"
    code += f"print(make(chosen(None, {{}}, run={str(run)!r}, checkpoint=None).config.env.id))"
    other = [sys.executable, "-c", code]
    found = subprocess.run(other, cwd=file.parent, capture_output=True, text=True, timeout=60)
    assert "Guess" in found.stdout, found.stderr


@pytest.mark.slow
def test_a_script_that_would_run_once_more_in_a_rank_is_refused_before_anything_starts(tmp_path):
    command = [sys.executable, script(tmp_path / "mine", BARE), tmp_path / "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    last = done.stderr.splitlines()[-1]
    assert "ConfigError: algo.loss: each trainer rank, a process of its own, cannot import" in last
    assert "from own import plain" in last
    assert not (tmp_path / "run").exists()


@cases("key", ["algo.loss", "algo.advantage", "trainer.optimizer"])
def test_an_object_of_a_notebook_is_refused_where_ranks_need_it(key):
    config = load_config(None, {"env.id": "math", key: "__main__:mine"})
    with pytest.raises(ConfigError, match=rf"{key}: each trainer rank.* cannot import mine"):
        check_policy(config, config.own_engine)


def test_a_name_of_a_notebook_that_is_not_there_has_the_remedy():
    with pytest.raises(ConfigError, match=r"cannot import Gone, .* from own import Gone"):
        import_object("__main__:Gone")
    assert only_here("tests.kit:x", "it") == ""
    assert "or leave it out" in only_here("reward:__main__:x", "it", instead="leave it out")


def test_an_environment_of_a_notebook_has_no_process_of_its_own(monkeypatch):
    main = types.ModuleType("__main__")
    code = """
from agentgym_rl import SyncEnv
class Apart(SyncEnv):
    executor = "process"
    def reset(self, *, seed=None, options=None):
        return [], {}
    def step(self, action):
        return [], 0.0, True, False, {}
"""
    exec(code, main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigError, match=r'cannot import Apart, .* or use executor "thread"'):
        ProcessEnv(main.Apart())
