"""Commands of other packages: `arl` finds, lists, describes and runs them like its own."""

import json
import subprocess
import sys

import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.cli.registry import command_names
from tests.kit.cases import cases
from tests.kit.extension import install

COUNT = """
from agentgym_rl.cli.command import Command, config_flag, json_flag, key_flag, load_configuration
from agentgym_rl.cli.output import print_json
from agentgym_rl.core.errors import ConfigError

def _flags(parser):
    json_flag(parser)
    config_flag(parser)
    key_flag(parser, "--start", "seed", type=int, metavar="N", help="the number before the first")
    parser.add_argument("--numbers", type=int, default=3, metavar="N", help="how many")

def _run(args):
    if args.numbers < 0:
        raise ConfigError(f"--numbers {args.numbers}: allowed are 0 and more")
    seed = load_configuration(args).seed
    found = list(range(seed + 1, seed + 1 + args.numbers))
    print_json({"found": found}) if args.json else print(*found)
    return 0 if found else 1

COUNT = Command(
    summary="count, 100 % in order", description="Count from a seed.", flags=_flags, run=_run
)
PLAN = Command(summary="a plan of theirs", run=lambda args: 7)
NOTHING = {"summary": "no command"}
"""
POINTS = {
    "count": "theirs_count:COUNT",
    "broken": "theirs_broken:COMMAND",
    "nothing": "theirs_count:NOTHING",
    "plan": "theirs_count:PLAN",
}


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    modules = {"theirs_count": COUNT, "theirs_broken": "raise RuntimeError('boom')\n"}
    folder = install(tmp_path / "theirs", modules, {"commands": POINTS})
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("theirs_count", None)


@pytest.fixture
def arl(theirs, capsys):
    """(exit code, stdout, stderr) of a command line."""

    def arl(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(line.split())
        return int(end.value.code or 0), *capsys.readouterr()

    return arl


def test_it_is_in_the_list_of_help_behind_ours(arl):
    code, out, _ = arl("--help")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert lines.index("other commands:") + 1 == lines.index("count count, 100 % in order")
    assert lines.index("bench run a benchmark") < lines.index("other commands:")


def test_it_is_listed_beside_environments(arl):
    _, out, _ = arl("list")
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert ["command", "count", "count, 100 % in order"] in rows
    assert ["command", "train"] not in [row[:2] for row in rows]
    _, out, _ = arl("list --json")
    row = {"kind": "command", "id": "count", "description": "count, 100 % in order", "error": ""}
    assert row in json.loads(out)["rows"]


def test_its_own_help_has_its_flags_and_the_keys(arl):
    code, out, _ = arl("count --help")
    assert code == 0
    assert "Count from a seed." in out
    assert all(word in out for word in ("--numbers N", "--config FILE", "max_staleness"))
    assert "clip_low = 0.2" in arl("count --help algo")[1]


@cases(
    "line, code, out",
    [
        ("count", 0, "2 3 4"),
        ("count --numbers 2 --seed=7", 2, ""),
        ("count --numbers 2 --start 7", 0, "8 9"),
        ("count --numbers 1 --env.id=math --start=7", 0, "8"),
        ("count --json --start 7 --numbers 1", 0, '{"found": [8]}'),
        ("count --numbers 0", 1, ""),
        ("count --numbers=-1", 2, ""),
    ],
)
def test_it_runs(arl, line, code, out):
    found = arl(line)
    assert (found[0], found[1].strip()) == (code, out)


@cases(
    "line, said",
    [
        ("conut", "unknown command 'conut'; did you mean count?"),
        ("count --number 3", "unknown argument '--number'; did you mean --numbers?"),
        ("list --numbers 3", "unknown argument '--numbers', which is for `arl count`"),
        ("count --numbers=-1", "--numbers -1: allowed are 0 and more"),
        ("broken", "(theirs_broken:COMMAND) cannot be imported: RuntimeError: boom"),
        ("nothing", "expected an instance of agentgym_rl.cli.command.Command"),
    ],
)
def test_a_mistake_is_named(arl, line, said):
    code, _, err = arl(line)
    assert code == 2
    assert said in err


def test_a_broken_one_is_a_row_beside_all_others(arl):
    _, out, _ = arl("--help")
    text = " ".join(out.split())
    assert "broken BROKEN: commands: 'broken' (theirs_broken:COMMAND) cannot be imported" in text
    assert "train train an agent" in text
    assert "count count, 100 % in order" in text
    _, out, _ = arl("list --json")
    rows = {row["id"]: row["error"] for row in json.loads(out)["rows"] if row["kind"] == "command"}
    assert "RuntimeError: boom" in rows["broken"]
    assert "expected an instance" in rows["nothing"]


@cases("line", ["--help", "plan --help"])
def test_a_name_of_ours_is_ours(arl, line):
    _, out, err = arl(line)
    assert "predict" in out.lower()
    assert "a plan of theirs" not in out
    assert err == (
        "arl: warning: the command 'plan' of theirs (theirs_count:PLAN) is left out: agentgym-rl "
        "has a command of that name\n"
    )


def test_other_commands_do_not_import_it(arl):
    code, _, _ = arl("runs --help")
    assert code == 0
    assert "theirs_count" not in sys.modules


def test_a_process_of_its_own_finds_it(theirs, tmp_path):
    argv = [sys.executable, "-m", "agentgym_rl", "count", "--json"]
    env = {"PYTHONPATH": str(theirs), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"found": [2, 3, 4]}


WITHOUT = """
import sys
sys.path = [folder for folder in sys.path if not folder.endswith("/extensions")]
from agentgym_rl.cli.registry import command_names
print(*command_names())
"""


def test_without_the_extensions_there_are_the_commands_of_the_kernel():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    kernel = ["engine", "eval", "list", "train", "trainer"]
    assert done.stdout.split() == kernel
    assert {"plan", "check", "serve", "audit", *kernel} < {*command_names()}
