"""The harness against honest and hostile programs, as the subprocess that a sandbox runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor import own
from arl_envs.harbor.harness import Unfit, content, decode, encode, holds, members, same

from .stand_in import verified, written

CASES: list[dict[str, Any]] = [
    {"steps": [{"call": "it:double", "args": [n]}], "expected": [{"value": 2 * n}]}
    for n in range(1, 4)
]
RIGHT = "def double(n):\n    return 2 * n\n"


def judged(root: Path, source: str, cases: Any = CASES, **order: Any) -> dict[str, Any]:
    """Return the reward of a program."""
    tests = {"test.sh": own.TEST_SH.encode(), **own.standalone(*own.HARNESS)}
    tests["cases.json"] = json.dumps({"mode": "calls", "cases": cases, **order}).encode()
    app = written(root / "app", {"it.py": source.encode()})
    found = verified(root, written(root / "tests", tests), app)
    assert not (root / "tests" / "cases.json").exists()
    return found


def test_a_right_program_is_paid(tmp_path: Path):
    got = judged(tmp_path, RIGHT)
    assert got == {"reward": 1.0, "fraction": 1.0, "nonce": "5f1c9e"}


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 2 / 3)])
def test_a_share_is_paid_if_the_task_says_so(tmp_path: Path, partial: bool, reward: float):
    wrong = "def double(n):\n    return 2 * n if n < 3 else 7\n"
    got = judged(tmp_path, wrong, partial=partial)
    assert got["reward"] == reward
    assert got["fraction"] == 2 / 3


HEAD = "import ctypes, gc, json, os, signal, sys, time, threading\n"
SAY = "double = lambda n: None\n"
FORGED = '{"reward": 1.0, "fraction": 1.0, "nonce": "x"}'
HOSTILE = {
    "nothing": "",
    "no syntax": "def double(",
    "exit at import": "os._exit(0)",
    "exit in a call": "def double(n): os._exit(0)",
    "SystemExit": "def double(n): raise SystemExit(0)",
    "BaseException": "def double(n): raise BaseException",
    "an int that is equal to all": "class Any(int):\n    def __eq__(s, o): return True\n"
    "def double(n): return Any(2 * n)",
    "an object that is equal to all": "class Any:\n    def __eq__(s, o): return True\n"
    "def double(n): return Any()",
    "a bool for 1": "def double(n): return True",
    "a float for an int": "def double(n): return 2.0 * n",
    "a huge list": "def double(n): return [0] * 10**7",
    "a huge number": "def double(n): return 10**10**6",
    "a deep list": "def double(n):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "a list in itself": "def double(n):\n    x = []\n    x.append(x)\n    return x",
    "json patched": "json.dumps = lambda *a, **k: '[{\"value\": 2}]'\n" + SAY,
    "builtins patched": "import builtins\nbuiltins.type = lambda x: int\nbuiltins.len = None\n"
    + SAY,
    "the memory searched for answers": "def double(n):\n"
    "    for it in gc.get_objects():\n"
    "        if isinstance(it, dict) and 'expected' in it: return it['expected'][0]['value']",
    "the frames searched for answers": "def double(n):\n    f = sys._getframe()\n"
    "    while f:\n        for v in f.f_locals.values():\n"
    "            if isinstance(v, dict) and 'expected' in v: return v['expected'][0]['value']\n"
    "        f = f.f_back",
    "the cases read": "def double(n):\n    import pathlib\n    here = pathlib.Path(__file__)\n"
    "    cases = json.loads((here.parents[1] / 'tests' / 'cases.json').read_text())['cases']\n"
    "    return cases[n - 1]['expected'][0]['value']",
    "the server's memory opened": "def double(n):\n"
    "    open(f'/proc/{os.getppid()}/mem', 'rb')\n    return 2 * n",
    "the judge's memory opened": "def double(n):\n"
    "    stat = open(f'/proc/{os.getppid()}/stat').read().split()\n"
    "    open(f'/proc/{stat[3]}/mem', 'rb')\n    return 2 * n",
    "the server's channel taken": "def double(n):\n"
    "    os.readlink(f'/proc/{os.getppid()}/fd/0')\n    return 2 * n",
    "a result written twice": "def double(n):\n"
    "    os.write(3, b'[{\"value\": 2}]')\n    return 2 * n",
    "the channel closed": "def double(n):\n    os.close(3)\n    return 2 * n",
    "the channel flooded": "def double(n):\n    while True: os.write(3, b'x' * 65536)",
    "the reward forged": "def double(n):\n    import pathlib\n"
    "    logs = pathlib.Path(__file__).parents[1] / 'logs'\n    logs.mkdir(exist_ok=True)\n"
    f"    (logs / 'reward.json').write_text('{FORGED}')",
    "the reward a folder": "def double(n):\n    import pathlib\n"
    "    logs = pathlib.Path(__file__).parents[1] / 'logs'\n"
    "    (logs / 'reward.json' / 'deep').mkdir(parents=True, exist_ok=True)",
}
SLOW = {
    "a loop without end": "def double(n):\n    while True: pass",
    "the server stopped": "def double(n):\n"
    "    os.kill(os.getppid(), signal.SIGSTOP)\n    return 2 * n",
    "a fork at every turn": "def double(n):\n    while True:\n        if os.fork(): os._exit(0)",
}


def together(root: Path, names: list[str]) -> dict[str, Any]:
    """Return the reward of hostile programs, each a module with a case of its own."""
    modules = {f"it{n}.py": (HEAD + HOSTILE[name]).encode() for n, name in enumerate(names)}
    written(root / "app", modules)
    cases = [
        {"steps": [{"call": f"it{n}:double", "args": [21]}], "expected": [{"value": 42}]}
        for n in range(len(names))
    ]
    return judged(root, RIGHT, cases, partial=True)


def test_no_hostile_program_is_paid(tmp_path: Path):
    all_paid = together(tmp_path / "all", list(HOSTILE))["reward"]
    alone = enumerate(HOSTILE if all_paid else [])  # each on its own tells which one is paid
    assert [name for n, name in alone if together(tmp_path / str(n), [name])["reward"]] == []
    assert all_paid == 0.0


def test_a_killed_judge_pays_nothing(tmp_path: Path):
    source = """
def double(n):
    stat = open(f"/proc/{os.getppid()}/stat").read().split()
    os.kill(int(stat[3]), signal.SIGKILL)
"""
    assert judged(tmp_path, HEAD + source, CASES[:1]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_what_never_ends_is_ended(tmp_path: Path, name: str):
    got = judged(tmp_path, HEAD + SLOW[name], CASES[:1])
    assert got.get("reward", 0.0) == 0.0


def test_a_flood_of_output_and_a_killed_server_cost_only_their_case(tmp_path: Path):
    source = f"""{HEAD}
def double(n):
    if n == 1:
        for _ in range(2000):
            print("x" * 1000)
            sys.stderr.write("y" * 1000)
    if n == 2:
        os.kill(os.getppid(), signal.SIGKILL)
    return 2 * n
"""
    assert judged(tmp_path, source)["fraction"] == 2 / 3


def test_no_process_is_left(tmp_path: Path):
    source = f"""{HEAD}
def double(n):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.path.dirname(__file__) + f"/pid-{{n}}", "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while not os.path.exists(os.path.dirname(__file__) + f"/pid-{{n}}"):
        time.sleep(0.001)
    return 2 * n
"""
    assert judged(tmp_path, source)["reward"] == 1.0
    pids = [int(path.read_text() or 0) for path in (tmp_path / "app").glob("pid-*")]
    assert len(pids) == 3
    assert not [pid for pid in pids if pid and os.path.exists(f"/proc/{pid}")]


def test_objects_live_for_one_case(tmp_path: Path):
    source = (
        "class It:\n    n = []\n    def add(self, x):\n        self.n.append(x); return self.n\n"
    )
    steps = [{"new": "it:It", "args": []}, {"method": "add", "args": [4]}]
    expected = [{"value": None}, {"value": [4]}]
    cases = [{"steps": steps, "expected": expected}] * 3
    assert judged(tmp_path, source, cases)["reward"] == 1.0


def test_errors_can_be_expected(tmp_path: Path):
    source = "def double(n):\n    raise KeyError(n)\n"
    cases = [{"steps": [{"call": "it:double", "args": [1]}], "expected": [{"raises": "KeyError"}]}]
    assert judged(tmp_path, source, cases)["reward"] == 1.0
    cases[0]["expected"] = [{"raises": "ValueError"}]
    assert judged(tmp_path, source, cases)["reward"] == 0.0


def test_without_a_nonce_the_reward_file_has_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Harbor's own runner allows nothing else; ours gives a nonce, and pays no file without it."""
    monkeypatch.setattr("tests.envs.harbor.stand_in.NONCE", "")
    assert judged(tmp_path, RIGHT) == {"reward": 1.0, "fraction": 1.0}


VALUES = [
    None,
    True,
    3,
    -2.5,
    "é",
    [1, [2]],
    (1, (2, [3])),
    {"a": 1, 2: (3,)},
    {3, 1},
    float("inf"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_survive_their_encoding(value: Any):
    said = json.loads(json.dumps(encode(value)))
    assert decode(said) == value
    assert type(decode(said)) is type(value)
    assert same(said, said)


def test_types_are_compared_exactly():
    pairs = [(1, True), (1, 1.0), ([1], (1,)), ("1", 1), ({1: 2}, {1: 2.0}), (None, 0)]
    assert [pair for pair in pairs if same(*map(encode, pair))] == []
    assert same(encode({1: 2, 3: 4}), encode({3: 4, 1: 2}))
    assert same(0.1 + 0.2, 0.3)


@pytest.mark.parametrize("value", [object(), type("Int", (int,), {})(3), [[]] * 20_001, b"x"])
def test_other_values_have_no_form(value: Any):
    with pytest.raises(Unfit):
        encode(value)


def test_a_check_follows_no_link_and_waits_for_no_pipe(tmp_path: Path):
    app, secret = tmp_path / "app", tmp_path / "secret"
    app.mkdir()
    secret.mkdir()
    (secret / "out.txt").write_text("yes\n")
    (app / "link.txt").symlink_to(secret / "out.txt")
    (app / "folder").symlink_to(secret)
    os.mkfifo(app / "pipe")
    started = time.monotonic()
    for path in ("link.txt", "folder/out.txt", "pipe", "../secret/out.txt/x", "none"):
        assert not holds({"is": "text", "path": path, "text": "yes\n"}, str(app)), path
    assert time.monotonic() - started < 60
    (app / "real.txt").write_text("yes\n")
    assert holds({"is": "text", "path": "real.txt", "text": "yes"}, str(app))
    assert content("real.txt", str(app)) == b"yes\n"


def test_an_unreadable_archive_is_no_answer(tmp_path: Path):
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8bnothing")
    for kind in ("tar", "json"):
        check = {"is": kind, "path": "a.tar.gz", "files": {}, "value": {}}
        assert not holds(check, str(tmp_path))


def test_an_archive_that_swells_is_refused():
    import gzip
    import io
    import tarfile

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("big")
        info.size = 64 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(Unfit):
        members(gzip.compress(data.getvalue(), 1))
