"""Episodes of the harbor environment in real local sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor.env import HarborEnv

from agentgym_rl import ConfigError, EnvError, InfraError, spec
from agentgym_rl.gym.env import Step
from tests.contracts.sandboxes import Opened

from .kit import SOLVE, TEST, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
END = {"role": "assistant", "content": "Done."}
LIMIT_S = 600.0


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    tool_call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def played(world: Opened, path: Path, *messages: dict[str, Any], **options: Any) -> list[Step]:
    """The steps of an episode with the task of a folder; None as messages: its solution."""

    async def play() -> list[Step]:
        env = HarborEnv(source=str(path), **options)
        task = env.task_source("train", seed=0, source=str(path))[0]
        try:
            await env.reset(options={"task": task, "sandboxes": world.backend})
            said = messages or tuple(env.solve() or ())
            return [await env.step(dict(message)) for message in said]
        finally:
            await env.close()

    return world.run(play(), LIMIT_S)


def texts(steps: list[Step]) -> list[str]:
    return [message["content"] for step in steps for message in step.observation]


def test_the_solution_is_paid_and_no_answer_is_not(world: Opened, tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    *_, last = played(world, path)
    assert (last.reward, last.terminated, last.info["verifier"]) == (1.0, True, "ok")
    assert "+42" in last.info["patch"]
    assert last.info["verifier_detail"] == "answer: 42"
    (last,) = played(world, path, END)
    assert (last.reward, last.info["verifier"], last.info["patch"]) == (0.0, "wrong", "")


def test_the_shell_keeps_its_state_and_edits_are_exact(world: Opened, tmp_path: Path) -> None:
    steps = played(
        world,
        written(tmp_path / "a"),
        call("bash", command="mkdir d; cd d; x=7; sleep 100 &"),
        call("bash", command="pwd; echo $x; jobs | wc -l; echo no >&2; (exit 3)"),
        call("edit", path="a.txt", old="", new="one two one"),
        call("edit", path="a.txt", old="one", new="x"),
        call("edit", path="a.txt", old="two", new="2"),
        call("edit", path="none.txt", old="x", new="y"),
        call("bash", command="cat /app/a.txt; sleep 60", timeout_s=0.5),
        call("bash", command="exit 4"),
        call("bash", command="echo $x; pwd"),
        call("bash", command="yes | head -c 100000"),
    )
    said = texts(steps)
    assert said[1] == "/app/d\n7\n1\nno\n[exit code 3]"
    assert said[2] == "created a.txt"
    assert said[3] == "error: old occurs 2 times in a.txt; expected exactly once"
    assert said[4] == "edited a.txt"
    assert "there is no file none.txt" in said[5]
    assert said[6].startswith("one 2 one\n[timeout after")
    assert "the shell was restarted" in said[7]
    assert said[8] == "\n/app"
    assert "characters left out" in said[9]
    assert len(said[9]) < 9000
    first, second = steps[0].info["commands"][0], steps[1].info["commands"][0]
    assert (first["tool"], first["command"][:7], first["status"]) == ("bash", "mkdir d", "ok")
    assert (second["exit_code"], second["output"]) == (3, said[1])
    assert steps[3].info["tool_errors"]


def test_the_time_of_an_agent_ends_the_episode_and_its_work_counts(
    world: Opened, tmp_path: Path
) -> None:
    path = written(tmp_path / "a", config={"agent": {"timeout_sec": 2.0}})
    (last,) = played(world, path, call("bash", command="echo 42 > answer.txt; sleep 100"))
    assert (last.terminated, last.truncated, last.reward) == (False, True, 1.0)
    assert last.info["stop_reason"] == "agent_timeout"


def test_links_folders_and_modes_reach_the_tests(world: Opened, tmp_path: Path) -> None:
    test = b"""#!/bin/sh
[ "$(readlink l)" = d/e/f ] && [ -x run ] && [ -d empty ] && [ ! -e README.md ] && pay=1
echo ${pay:-0} > /logs/verifier/reward.txt
"""
    path = written(tmp_path / "a", tests={"test.sh": test})
    command = "mkdir -p d/e empty; echo x > d/e/f; ln -s d/e/f l; echo > run; chmod +x run; rm R*"
    *_, last = played(world, path, call("bash", command=command), END)
    assert last.reward == 1.0, last.info


def test_partial_rewards_and_several_metrics(world: Opened, tmp_path: Path) -> None:
    test = b"""#!/bin/sh
echo '{"reward": 0.5, "speed": 3}' > /logs/verifier/reward.json
"""
    *_, last = played(world, written(tmp_path / "a", tests={"test.sh": test}), END)
    assert (last.reward, last.info["verifier"]) == (0.5, "wrong")
    assert last.info["reward_components"] == {"tests": 0.5, "speed": 3.0}


def test_tests_without_a_reward_are_the_agents_doing_or_nobodys(
    world: Opened, tmp_path: Path
) -> None:
    test = TEST.replace(b"echo $pay", b"[ -e bad ] || echo $pay")
    path = written(tmp_path / "a", tests={"test.sh": test})
    *_, last = played(world, path, call("bash", command="touch bad"), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "no_reward")
    never = written(tmp_path / "b", tests={"test.sh": b"#!/bin/sh\n"})
    with pytest.raises(InfraError, match="pay nothing for its solution either"):
        played(world, never, END)


def test_tests_that_lack_a_tool_pay_nobody_and_are_nobodys_doing(
    world: Opened, tmp_path: Path
) -> None:
    test = b"""#!/bin/bash
if uvx --with pytest==8.4.1 pytest /tests/test_outputs.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
    path = written(tmp_path / "a", tests={"test.sh": test})
    with pytest.raises(InfraError, match=r"uvx: command not found.*pay nothing for its solution"):
        played(world, path, END)
    path = written(tmp_path / "b", tests={"test.sh": test}, solution={})
    assert played(world, path, END)[-1].reward == 0.0  # nobody can tell


def test_tests_that_do_not_end_are_ended(world: Opened, tmp_path: Path) -> None:
    test = TEST.replace(b"#!/bin/sh", b"#!/bin/sh\n[ -e slow ] && sleep 1000")
    path = written(
        tmp_path / "a", tests={"test.sh": test}, config={"verifier": {"timeout_sec": 15.0}}
    )
    *_, last = played(world, path, call("bash", command="touch slow"), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "timeout")


def test_a_nonce_is_asked_for(world: Opened, tmp_path: Path) -> None:
    pays = b"""#!/bin/sh
read nonce
[ -e forged ] && nonce=guess
echo "{\\"reward\\": 1, \\"nonce\\": \\"$nonce\\"}" > /logs/verifier/reward.json
"""
    config = {"metadata": {"arl_nonce": True}}
    path = written(tmp_path / "a", tests={"test.sh": pays}, config=config)
    assert played(world, path, END)[-1].reward == 1.0
    *_, last = played(world, path, call("bash", command="touch forged"), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "tampered")


def test_variables_work_folder_and_healthcheck(world: Opened, tmp_path: Path) -> None:
    config = {
        "environment": {
            "env": {"A": "it's ${X:-b}"},
            "workdir": "/srv/work",
            "healthcheck": {"command": "test -d /srv/work", "retries": 1},
        },
        "verifier": {"env": {"B": "c"}},
        "artifacts": ["/data/out.txt"],
    }
    test = b"""#!/bin/sh
[ "$PWD $A $B $(cat /data/out.txt)" = "/srv/work it's b c kept" ] && pay=1
echo ${pay:-0} > /logs/verifier/reward.txt
"""
    path = written(tmp_path / "a", config=config, tests={"test.sh": test})
    command = 'mkdir /data; echo kept > /data/out.txt; echo "$A $PWD"'
    steps = played(world, path, call("bash", command=command), END)
    assert texts(steps)[0] == "it's b /srv/work"
    assert steps[-1].reward == 1.0, steps[-1].info
    sick = {"environment": {"healthcheck": {"command": "false", "retries": 2, "interval_sec": 0}}}
    with pytest.raises(InfraError, match="its healthcheck failed 2 times"):
        played(world, written(tmp_path / "b", config=sick), call("bash", command="ls"))


def test_a_solution_of_several_files_and_of_steps(world: Opened, tmp_path: Path) -> None:
    files = {"solve.sh": b"#!/bin/sh\ncp $(dirname $0)/x/a answer.txt\n", "x/a": b"42\n"}
    assert played(world, written(tmp_path / "a", solution=files))[-1].reward == 1.0
    steps = [
        {"name": "bash", "arguments": {"command": "ls"}},
        {"name": "edit", "arguments": {"path": "answer.txt", "old": "", "new": "42\n"}},
    ]
    files = {"solve.sh": SOLVE, "steps.json": json.dumps(steps).encode()}
    played_steps = played(world, written(tmp_path / "b", solution=files))
    assert len(played_steps) == 3
    assert played_steps[-1].reward == 1.0


def test_wrappers_in_a_work_folder_on_path_do_not_run(world: Opened, tmp_path: Path) -> None:
    files = {"Dockerfile": b"FROM python:3.11-slim\nWORKDIR /app\nENV PATH=/app:$PATH\n"}
    path = written(tmp_path / "a", environment=files)
    command = "printf '#!/bin/sh\\necho 42' > cat; chmod +x cat; ./cat; echo no > answer.txt"
    steps = played(world, path, call("bash", command=command), END)
    assert texts(steps)[0] == "42"
    assert (steps[-1].reward, steps[-1].info["verifier"]) == (0.0, "wrong")


def test_some_folders_are_no_work_folders(world: Opened, tmp_path: Path) -> None:
    files = {"Dockerfile": b"FROM python:3.11-slim\nWORKDIR /tests/x\n"}
    with pytest.raises(EnvError, match="its work folder is '/tests/x'"):
        played(world, written(tmp_path / "a", environment=files), END)


def test_huge_work_folders_are_not_taken_over(world: Opened, tmp_path: Path) -> None:
    command = "head -c 90M /dev/zero > big; echo 42 > answer.txt"
    *_, last = played(world, written(tmp_path / "a"), call("bash", command=command), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "too_large")


def test_the_spec_takes_a_source_and_refuses_other_options() -> None:
    env = spec("harbor:bugs").make(level=1)
    assert env.max_turns == 50
    with pytest.raises(ConfigError, match="output_chars: got 3"):
        spec("harbor:bugs").make(output_chars=3)
