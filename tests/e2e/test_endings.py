"""Killed children, Ctrl-C, a killed parent: a named end in time, and nothing is left."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from agentgym_rl.models.resolve import BUNDLED

from .conftest import Run, descendants, gone

pytestmark = pytest.mark.slow

LONG = ("--steps=500", "--eval.num_tasks=0")
NO_RESTART = ("--engine.max_restarts=0", "--trainer.max_restarts=0")


def listening(pids: Iterable[int]) -> set[int]:
    """TCP ports these processes listen on."""
    inodes: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    return {port for port, inode in open_ports() if inode in inodes}


def open_ports() -> list[tuple[int, str]]:
    """(port, socket inode) of every listening TCP socket of this machine."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [(int(f[1].rpartition(":")[2], 16), f[9]) for f in lines if f[3] == "0A"]


def end_by(run: Run, action) -> tuple[int, str]:
    """Do something to a training run; it must end soon and leave nothing."""
    run.wait_for_step(1)
    children = list(descendants(run.process.pid))
    ports = listening([run.process.pid, *children])
    assert len(ports) >= 3  # gateway, controller, engine
    start = time.monotonic()
    action()
    code, _, err = run.wait(timeout_s=180)
    assert time.monotonic() - start < 150  # seconds, and a busy machine
    assert gone(children)
    assert ports.isdisjoint({port for port, _ in open_ports()})
    return code, err


@pytest.mark.parametrize("child", ["engine", "trainer"])
def test_a_killed_child_ends_the_run(start, child):
    run = start(*LONG, *NO_RESTART)
    code, err = end_by(run, lambda: os.kill(run.child(child), signal.SIGKILL))
    assert code == 1
    assert f"{child}" in err
    assert "SIGKILL" in err
    assert run.leftovers() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_end_everything_cleanly(start, number):
    run = start(*LONG)
    code, err = end_by(run, lambda: run.process.send_signal(number))
    assert code == 130, err
    assert "interrupted" in err
    assert run.leftovers() == set()


def test_a_killed_parent_takes_its_children_along(start):
    run = start(*LONG, executed=True)
    left: set[str] = set()

    def kill() -> None:
        left.update(run.leftovers())  # not later: any run that starts meanwhile cleans up
        run.process.kill()

    code, _ = end_by(run, kill)
    assert code == -signal.SIGKILL
    start("--eval.num_tasks=0", "--steps=1").result()  # the next run cleans up
    assert left
    assert run.leftovers() == set()


# ---------------------------------------------------------------- at other moments
def ends_naming_engine(run: Run, killed: float) -> str:
    """The engine was killed at `killed`: the run ends soon, says so, leaves nothing."""
    code, _, err = run.wait(timeout_s=180)
    assert time.monotonic() - killed < 150
    assert code == 1, err
    assert "engine-0 was killed by SIGKILL" in err
    assert run.leftovers() == set()
    return err


def test_an_engine_killed_while_it_starts_ends_the_run(start):
    run = start(*LONG)
    end = time.monotonic() + 120
    while not any(" engine " in line for line in descendants(run.process.pid).values()):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(run.child("engine"), signal.SIGKILL)
    ends_naming_engine(run, time.monotonic())


def test_an_engine_killed_in_the_final_evaluation_ends_the_run(start):
    run = start("--steps=2", "--eval.num_tasks=1024", *NO_RESTART)
    run.wait_for_step(1)
    end = time.monotonic() + 120
    while "evaluating on held-out tasks, after training" not in run.process.errors():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(run.child("engine"), signal.SIGKILL)
    err = ends_naming_engine(run, time.monotonic())
    assert "evaluating on held-out tasks, after training" in err
    assert "version 2: held-out reward" not in err


def test_a_trainer_told_to_end_is_missed(start):
    run = start(*LONG, *NO_RESTART)
    code, err = end_by(run, lambda: os.kill(run.child("trainer"), signal.SIGTERM))
    assert code == 1, err
    assert "trainer" in err
    assert run.leftovers() == set()


def test_a_model_that_ranks_would_refuse_starts_nothing(start, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED, folder)
    tensors = load_file(folder / "model.safetensors")
    gone_from_it = sorted(tensors)[1]
    del tensors[gone_from_it]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    run = start(f"--model={folder}", *LONG)
    code, out, err = run.wait()
    assert code == 2, err
    said = json.loads(out)["error"]["message"]
    assert f"random: {gone_from_it}" in said
    assert "nothing was started" in said
    assert not list((run.folder / "logs").glob("engine*"))
    assert run.leftovers() == set()
