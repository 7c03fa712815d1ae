"""Episodes of the harbor environment in real local sandboxes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor import own
from arl_envs.harbor.env import HarborEnv
from arl_envs.harbor.terminal import NO_SHELL

from agentgym_rl import ConfigError, EnvError, InfraError, spec
from agentgym_rl.gym import Step
from tests.contracts.sandboxes import Opened
from tests.kit.cases import cases

from .kit import DOCKERFILE, SOLVE, TEST, written

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
        call("bash", command="cat /app/a.txt; sleep 60", timeout_s=3),
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
    path = written(tmp_path / "a", config={"agent": {"timeout_sec": 5.0}})
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


def paying(text: str) -> dict[str, bytes]:
    """Tests that give this reward.json, and 1.0 to the solution."""
    script = f"""#!/bin/sh
if [ -e answer.txt ]; then found=1.0; else found='{text}'; fi
echo "$found" > /logs/verifier/reward.json
"""
    return {"test.sh": script.encode()}


@cases("text", ["1e12", "1.001", "-1", '{"reward": 2, "a": 0}', '{"a": 1, "b": 9}', "NaN", "1e999"])
def test_a_reward_that_the_task_does_not_declare_is_not_paid(
    text: str, world: Opened, tmp_path: Path
) -> None:
    path = written(tmp_path / "a", tests=paying(text))
    *_, last = played(world, path, call("bash", command="touch x"), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "no_reward")
    assert "reward" in last.info["verifier_detail"]


def test_a_declared_range_is_paid_to_its_ends(world: Opened, tmp_path: Path) -> None:
    config = {"metadata": {"arl_reward_range": [-1, 10]}}
    for text, reward, status in (
        ("10", 10.0, "ok"), ("1", 1.0, "wrong"), ("-1", -1.0, "wrong"), ("-2", -1.0, "no_reward"),
    ):  # fmt: skip
        path = written(tmp_path / text, tests=paying(text), config=config)
        *_, last = played(world, path, call("bash", command="touch x"), END)
        assert (last.reward, last.info["verifier"]) == (reward, status)


def test_a_task_whose_solution_is_out_of_range_says_what_to_declare(
    world: Opened, tmp_path: Path
) -> None:
    path = written(tmp_path / "a", tests={"test.sh": TEST.replace(b"pay=1", b"pay=7")})
    with pytest.raises(InfraError, match=r"7, .* allows 0 to 1.*arl_reward_range = \[0, 7\]"):
        played(world, path)


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


LEAVES = """
import os, time
if os.fork() == 0:
    if {daemon}:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.closerange(0, 64)
    time.sleep(600)
def double(n):
    return 2 * n
"""


@cases("daemon", [False, True])
def test_forks_that_a_right_program_leaves_cost_it_nothing(
    daemon: bool, world: Opened, tmp_path: Path
) -> None:
    """They execute nothing, so /proc of a sandbox hides them from the harness."""
    calls = [{"steps": [{"call": "it:double", "args": [n]}], "expected": [{"value": 2 * n}]}
             for n in range(8)]  # fmt: skip
    order = json.dumps({"mode": "calls", "cases": calls}).encode()
    tests = {"test.sh": own.TEST_SH.encode(), "cases.json": order, **own.standalone(*own.HARNESS)}
    task = written(tmp_path / "a", tests=tests, config={"metadata": {"arl_nonce": True}})
    edit = call("edit", path="it.py", old="", new=LEAVES.format(daemon=daemon))
    *_, last = played(world, task, edit, END)
    assert (last.reward, last.info["verifier_detail"]) == (1.0, "8 of 8 cases passed")


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


AROUND = (
    "RUN mkdir closed d && echo x > closed/f && chmod 555 closed && chmod 500 d && chmod 555 .\n"
    "RUN mkdir -p /data/sub && echo x > /data/f && chmod 555 /data && echo y > /file\n"
)
SETTLED = """#!/bin/sh
[ "$(cat answer.txt)" = 42 ] && [ "$(cat conftest.py)" = theirs ] && pay=1
echo ${pay:-0} > /logs/verifier/reward.txt
"""
LEFT = {
    "a hook as a folder": "rm conftest.py; mkdir conftest.py; echo x > conftest.py/x",
    "a link below a hook": "rm conftest.py; mkdir conftest.py; ln -s ../answer.txt conftest.py/l",
    "folders below a hook": "rm conftest.py; mkdir -p conftest.py/a/b",
    "files of a closed folder": "rm closed/f; echo y > closed/g; chmod 555 closed",
    "a closed folder removed": "chmod 755 closed; rm -r closed",
    "a closed folder as a link": "chmod 755 closed; rm -r closed; ln -s d closed",
    "a folder in a closed one": "chmod 755 d; mkdir -p d/e/f; ln -s e d/l; chmod 500 d",
    "an artifact's folder as a file": "chmod 755 /data; rm -r /data; echo z > /data",
    "an artifact's file as a folder": "rm /file; mkdir /file; echo z > /file/x",
    "an artifact's closed folder": "chmod 755 /data; echo z > /data/z; chmod 555 /data",
    "the published folder as a file": "rm -r /logs/artifacts; echo x > /logs/artifacts",
    "hooks among the artifacts": "chmod 755 /data; echo x > /data/conftest.py",
    "the work folder closed": "chmod 000 /app",
    "the work folder made anew": (
        "cd /; cp -r /app /b && rm -rf /app && mkdir /app && cp -r /b/. /app && ls /app"
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_honest_work_is_paid_whatever_lies_around(kind: str, world: Opened, tmp_path: Path) -> None:
    dockerfile = DOCKERFILE.decode() + AROUND
    path = written(
        tmp_path / "a",
        environment={"Dockerfile": dockerfile.encode(), "repo/conftest.py": b"theirs\n"},
        tests={"test.sh": SETTLED.encode()},
        config={"artifacts": ["/data", "/file"]},
    )
    command = f"chmod 755 .; echo 42 > answer.txt; chmod 755 closed d; {LEFT[kind]}"
    *_, last = played(world, path, call("bash", command=command), END)
    assert (last.reward, last.info["verifier"]) == (1.0, "ok"), last.info


GONE = {
    "deleted": "rm -rf /app",
    "a file": "rm -rf /app; echo 42 > /app",
    "a pipe": "rm -rf /app; mkfifo /app",
    "linked to itself": "rm -rf /app; ln -s app /app",
    "empty and new": "mv /app /old; mkdir /app",
}


@pytest.mark.parametrize("kind", GONE)
def test_a_work_folder_that_is_gone_is_an_answer_like_others(
    kind: str, world: Opened, tmp_path: Path
) -> None:
    path = written(tmp_path / "a")
    write = call("bash", command="echo 42 > answer.txt")
    gone, restart = call("bash", command=f"cd /; {GONE[kind]}"), call("bash", command="exit 0")
    *_, last = played(world, path, write, gone, END)
    assert (last.reward, last.info["verifier"]) == (0.0, "wrong"), last.info
    *_, last = played(world, path, write, gone, restart, call("bash", command="pwd; ls"), END)
    assert (last.reward, last.info["verifier"]) == (0.0, "wrong"), last.info


BROKEN = {
    "all files removed": "rm -rf --no-preserve-root / 2> /dev/null; exit 0",
    "no loader": "rm -f /lib64 /lib /bin; exit 0",
    "a closed root": "chmod 000 /; exit 0",
    "a library that ends programs": "echo /app/end.so > /etc/ld.so.preload; exit 0",
}
ENDS = "__attribute__((constructor)) void end(void) {_Exit(3);}"


@pytest.mark.parametrize("kind", BROKEN)
def test_an_agent_that_breaks_its_system_is_told_so_and_judged(
    kind: str, world: Opened, tmp_path: Path
) -> None:
    gcc = f"printf '#include <stdlib.h>\\n{ENDS}' > e.c && gcc -shared -fPIC -o end.so e.c; echo"
    if "library" in kind and shutil.which("gcc") is None:
        pytest.skip("no compiler on this machine")
    steps = played(
        world,
        written(tmp_path / "a"),
        call("bash", command=gcc),
        call("bash", command=BROKEN[kind]),
        call("bash", command="echo hi"),
        call("edit", path="/app/b", old="", new="x"),
        END,
    )
    assert texts(steps)[2].startswith(NO_SHELL), texts(steps)
    assert steps[2].info["commands"][0]["status"] == "error"
    assert (steps[-1].reward, steps[-1].info["verifier"]) == (0.0, "wrong")


def test_files_with_holes_do_not_fill_the_tests_disk(world: Opened, tmp_path: Path) -> None:
    holes = "for i in 1 2 3 4 5 6; do truncate -s 12M big$i /logs/artifacts/big$i; done"
    path = written(tmp_path / "a")
    *_, last = played(world, path, call("bash", command=holes), END, disk_mb=16)
    assert (last.reward, last.info["verifier"]) == (0.0, "too_large")


def test_an_image_that_is_too_large_is_nobodys_doing(world: Opened, tmp_path: Path) -> None:
    many = b"RUN for i in $(seq 8100); do : > f$i; done\n"
    environment = {"Dockerfile": DOCKERFILE + many, "repo/README.md": b"about\n"}
    look = call("bash", command="echo 42 > answer.txt")
    for name, changes in {"a": {}, "b": {"solution": {}}}.items():
        path = written(tmp_path / name, environment=environment, **changes)
        with pytest.raises(InfraError, match="more than 8000 files"):
            played(world, path, look, END)


def test_git_does_not_read_the_agents_settings(world: Opened, tmp_path: Path) -> None:
    paid = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    test = "#!/bin/sh\ngit status\n[ -e /logs/verifier/reward.txt ] || "
    test += "echo 0 > /logs/verifier/reward.txt\n"
    dockerfile = DOCKERFILE + b"RUN git init -q .\n"
    path = written(
        tmp_path / "a",
        environment={"Dockerfile": dockerfile, "repo/README.md": b"about\n"},
        tests={"test.sh": test.encode()},
        solution={},
    )
    evil = f"git config --file evil/config core.fsmonitor '{paid}; false'"
    for command in (
        f"cp -r .git evil; {evil}; echo ../evil > .git/commondir",
        f"cp -r .git evil; {evil}; git config --file evil/config core.bare false; "
        "git config --file evil/config core.worktree /app; cp -r evil/. .; rm .git/HEAD",
    ):
        *_, last = played(world, path, call("bash", command=command), END)
        assert (last.reward, last.info["verifier"]) == (0.0, "wrong"), last.info


def test_modules_of_the_image_are_not_shadowed(world: Opened, tmp_path: Path) -> None:
    dockerfile = (
        DOCKERFILE + b"ENV PYTHONPATH=/opt/lib\nRUN mkdir /opt/lib && touch /opt/lib/shop.py\n"
    )
    test = b"#!/bin/sh\n[ -e shop.py ] || pay=1\necho ${pay:-0} > /logs/verifier/reward.txt\n"
    path = written(
        tmp_path / "a",
        environment={"Dockerfile": dockerfile, "repo/README.md": b"about\n"},
        tests={"test.sh": test},
    )
    *_, last = played(world, path, call("bash", command="echo evil > shop.py; ls /opt/lib"), END)
    assert list(last.info["dropped_files"]) == ["shop.py"]


def test_a_large_solution_and_a_script_for_bash(world: Opened, tmp_path: Path) -> None:
    solution = {"solve.sh": b"cp /solution/big answer.big; echo 42 > answer.txt\n"}
    test = b"[[ $(cat answer.txt) == 42 && $(wc -c < answer.big) == 600000 ]] && pay=1\n"
    path = written(
        tmp_path / "a",
        tests={"test.sh": test + b"echo ${pay:-0} > /logs/verifier/reward.txt\n"},
        solution={**solution, "big": random.Random(0).randbytes(600_000)},
    )
    *_, last = played(world, path)
    assert (last.reward, last.info["verifier"]) == (1.0, "ok"), last.info


def test_a_solution_that_fails_says_so(world: Opened, tmp_path: Path) -> None:
    path = written(tmp_path / "a", solution={"solve.sh": b"#!/bin/sh\necho no tool; exit 3\n"})
    with pytest.raises(InfraError, match=r"its solution ends with no tool\n\[exit code 3\]"):
        played(world, path, END)
