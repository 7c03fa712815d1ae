"""`arl` as typed: help, near matches, exit codes, the JSON of failures, interrupts."""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentgym_rl.cli import eval_targets as eval_arguments
from agentgym_rl.cli import load_configuration, registry
from agentgym_rl.cli import main as cli
from agentgym_rl.cli import output as showing
from agentgym_rl.cli.command import GROUPS, overrides_of
from agentgym_rl.cli.config_keys import key_help
from agentgym_rl.cli.parse import make_parser, parse
from agentgym_rl.config import Config, load_config, section_types
from agentgym_rl.core import ConfigError, EngineError, ProcessDied
from tests.kit.cases import cases

RUNS = "--json --config --model --seed --env --data --agent --engine --sandbox --run -q -v"
FLAGS = {
    "train": f"{RUNS} --resume --steps --init --preset --cluster --address --dry-run",
    "eval": f"{RUNS} --checkpoint --out --compare --round-robin -n -r",
    "list": "--json",
    "engine": "--config --model --seed --backend --index --host --port --weight-version "
    "--journal --reward-model",
    "rollout": "--config --model --seed --controller --index --folder",
    "trainer": "--config --model --seed --run --weights --controller --rank --rendezvous "
    "--incarnation --resume --served --splits",
    "warm-up": "--config --model --seed --run --resume --rank --rendezvous",
    "bench": "--json --model --dry-run --out",
    "audit": "--json --threshold --all --model",
    "check": "--json --config --data --sandbox --list --only --episodes --tasks",
    "ledger": "--json",
    "runs": "--json --compare --delete --yes",
    "inspect": "--json --host --port --open --html --episodes --read-only",
    "engines": "--json --add --remove",
    "workers": "--json --add --remove",
    "replay": "--json --step --model",
    "export": "--json --sft --pairs --kto --filtered --most --margin --model --base --out "
    "--min-reward --split --format --oracle --num "
    "--slips --seed --env --agent --config --data --sandbox",
    "reverify": "--json --write",
    "timeline": "--json --out",
    "plan": "--json --config --model --seed --engine --steps --run --rates --gpu --parameters "
    "--gpus --cores --no-search --plot --write-rates --memory --allocation",
    "doctor": "--json --config --sandbox",
}


@pytest.fixture
def arl(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command line."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def arl(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(argv)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return arl


@cases("command", FLAGS)
def test_help_shows_every_flag(arl, command):
    code, out, _ = arl(command, "--help")
    assert code == 0
    assert set(re.findall(r"(?m)^  (?:-\w(?: [A-Z]+| \[SECTION\])?, )?(--?[\w-]+)", out)) == {
        "--help",
        *FLAGS[command].split(),
    }


@cases("command", ["train", "eval", "engine", "trainer"])
def test_help_shows_the_keys_of_the_configuration(arl, command):
    _, out, _ = arl(command, "--help")
    assert all(section in out for section in ("  rollout: ", "  algo.behavior_correction (mask): "))
    assert "max_staleness" in out
    assert max(map(len, out.splitlines())) <= 80


@cases("command", ["", *registry.command_names()])
def test_help_fits_into_80_columns(arl, command):
    _, out, _ = arl(*command.split(), "--help")
    assert not [line for line in out.splitlines() if len(line) > 80]


def key_places(model: type[BaseModel] = Config, above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield each section and each key with its field, those of every type."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}", field
        for kind in section_types(field):
            yield from key_places(kind, f"{above}{name}.")


def test_help_of_a_section_is_a_screen_that_says_what_each_key_does(arl):
    sections = {name: section_types(it) for name, it in key_places() if section_types(it)}
    assert len(sections) > 25
    for name, kinds in sections.items():
        code, out, _ = arl("train", "--help", name)
        lines = out.splitlines()
        assert code == 0
        assert max(map(len, lines)) <= 80
        assert len(lines) <= (50 if name.startswith("algo") else 64), name
        for key in {key for kind in kinds for key in kind.model_fields} - {"type"}:
            assert re.search(rf"(?m)^  {key} = |\b{name}\.{key}\b|as above: .*\b{key}\b", out), key


def test_help_of_a_key_is_all_that_is_known_of_it(arl):
    for name, field in key_places():
        if section_types(field):
            continue
        text = " ".join(key_help(name).split())
        assert text.startswith(f"{name} = "), name
        assert re.sub(r"\bNone\b", "unset", " ".join((field.description or "").split())) in text
        assert field.description or name.endswith(".type"), f"{name} says nothing"


@cases(
    "asked, said",
    [
        ("algo.clip_low", "algo.clip_low = 0.2   > 0, ≤ 1\n"),
        ("algo.aggregation", 'algo.aggregation = "token"   token, sequence, constant\n'),
        ("trainer.betas", "trainer.betas = [0.9, 0.99]   ≥ 0, < 1\n"),
        (
            "eval.temperature",
            "eval.temperature = 1.0   ≥ 0\n  The sampling temperature; 0 is greedy.",
        ),
        ("algo.behavior_correction.cap", "algo.behavior_correction.cap = 5.0   > 0\n"),
        ("algo.klt", "there is no such section or key; did you mean algo.kl?"),
        ("loss", "did you mean algo.loss?"),
        ("zzz", "known: preset, seed"),
        ("seed.kl", "there is no such section or key"),
    ],
)
def test_help_of_what_was_asked(arl, asked, said):
    _, out, err = arl("plan", "--help", asked)
    assert said in out + err


def test_help_names_every_benchmark(arl):
    _, out, _ = arl("bench", "--help")
    files = (Path(__file__).parents[2] / "benchmarks").glob("[!_]*.py")
    assert set(re.findall(r"\w+", out)) >= {file.stem for file in files}


def test_list(arl):
    code, out, _ = arl("list")
    assert code == 0
    assert re.search(r"(?m)^env +math-v0 .*arithmetic", out)
    assert re.search(r"(?m)^agent +react-v0", out)


def test_list_as_json(arl):
    _, out, _ = arl("list", "--json")
    rows = {(row["kind"], row["id"]): row["error"] for row in json.loads(out)["rows"]}
    assert (
        rows["sandbox", "local"] == rows["env", "math-v0"] == rows["agent", "single_turn-v0"] == ""
    )


@pytest.mark.parametrize("words", ["check --list", "ledger nowhere --json"])
def test_a_reader_that_leaves_is_no_error(words):
    command = f"{sys.executable} -m agentgym_rl {words}; echo $? >&2"
    shell = ["bash", "-c", f"({command}) | sleep 0"]
    ran = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert ran.stderr == "141\n"


def test_no_command_shows_the_help(arl):
    code, out, _ = arl()
    assert code == 2
    assert "arl train --env math --agent react" in out


@cases(
    "line, said",
    [
        ("train --stpes=3", "did you mean --steps?"),
        ("train --stpes 3", "did you mean --steps?"),
        ("train --step=3", "did you mean --steps?"),
        ("train --max-staleness=3", "did you mean --rollout.max_staleness?"),
        ("train --rollout.max_stalenes=3", "did you mean rollout.max_staleness?"),
        ("eval --chekpoint=x", "did you mean --checkpoint?"),
        ("train math", "unknown argument 'math'"),
        ("list --env.id=x", "unknown argument '--env.id=x'"),
        ("--json list", "it goes after the command: arl list --json"),
        ("--josn", "unknown argument '--josn'"),
        ("trian", "unknown command 'trian'; did you mean train?"),
        ("serve --env math", "`arl export`, `arl config`; programs of yours play"),
        ("runs --steps=3", "which is for `arl train`, `arl serve`, `arl plan`"),
        ("export x --split=tran --out y", "unknown --split 'tran'; did you mean train?"),
        ("bench gatway", "did you mean gateway?"),
        ("train --logging.trackers tensorbord", "did you mean tensorboard?"),
        ("train --trainer.schedule=cosin", "did you mean cosine?"),
        ("train --engine.gpus=1", "engine.type 'vllm' has it"),
        ("train --trainer.learning_rate=inf", "finite"),
        ("train --trainer.betas=0.9,1.5", "less than 1"),
        (f"train --steps={10**20}", "at most 1000000000"),
        (f"train --rollout.group_size={10**20}", "at most 2^53"),
        ("train --rollout.turn_timeout_s=1e300", "at most 100,000,000 seconds"),
        ("train --rollout.turn_timeout_s=nan", "finite"),
        ("train --sandbox daytona --dry-run", "no sandbox is called 'daytona'; known: docker"),
        ("inspect --port=99999 .", "cannot listen on 127.0.0.1, port 99999"),
        ("train --steps=few", "'few'"),
        ("train --rollout.max_staleness", "write --rollout.max_staleness=value"),
        ("train --env math --env.id=math", "give one of them"),
        ("engine --json", "unknown argument '--json'"),
        ("engine --backend=vlm", "did you mean vllm?"),
        ("bench nothing", "known: all, clients, code, coding, crash, curriculum"),
        ("train --env=mth", "arl list"),
        ("train --engine=openai", "works with `arl eval` alone"),
        ("engine --backend=openai", "works with `arl eval` alone"),
        ("eval --engine=openai", "pass --model NAME"),
    ],
)
def test_wrong_use_is_said_in_one_line(arl, line, said):
    code, out, err = arl(*line.split())
    assert (code, out if "--json" not in line else "") == (2, "")
    assert err.startswith("arl: ")
    assert said in err
    assert "Traceback" not in err


def test_a_failure_is_a_json_object_when_asked_for(arl):
    code, out, err = arl("train", "--json", "--rollout.max_stalenes=1")
    error = json.loads(out)["error"]
    assert code == 2
    assert error["type"] == "ConfigError"
    assert "did you mean rollout.max_staleness?" in error["message"]
    assert error["message"] in err


@cases(
    "error, code, message",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ConfigError("no"), 2, "no"),
        (EngineError("gone"), 1, "gone"),
        (TimeoutError(), 1, "TimeoutError"),
        (FileNotFoundError(2, "No such file", "x"), 1, "[Errno 2] No such file: 'x'"),
        (ExceptionGroup("", [EngineError("cut off"), ProcessDied("engine")]), 1, "engine"),
        (BaseExceptionGroup("", [ConfigError("no"), KeyboardInterrupt()]), 130, "interrupted"),
    ],
)
@cases("as_json", [False, True])
def test_an_error_has_its_message_and_exit_code(capsys, error, code, message, as_json):
    assert cli._explain(error, as_json=as_json) == code
    out, err = capsys.readouterr()
    assert err == f"arl: {message}\n"
    assert (json.loads(out)["error"]["message"] if as_json else out) == (message if as_json else "")


def test_an_error_that_is_not_ours_keeps_its_traceback(capsys):
    with pytest.raises(ZeroDivisionError):
        cli._explain(ZeroDivisionError("1/0"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "error": {"type": "ZeroDivisionError", "message": "1/0"}
    }


def test_an_error_of_a_hidden_module_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calendar.py").touch()
    error = AttributeError("module 'calendar' has no attribute 'timegm'")
    assert cli._explain(error, as_json=False) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "arl: rename calendar.py in this folder: it hides a module of Python (At"
    )


def test_an_error_beside_an_outdated_package_names_the_package(capsys, monkeypatch):
    monkeypatch.setattr(cli, "outdated", lambda: "pydantic 2.10.0 is installed, allowed is x")
    assert cli._explain(ZeroDivisionError("1/0"), as_json=False) == 2
    assert capsys.readouterr().err == (
        "arl: pydantic 2.10.0 is installed, allowed is x (it may be the cause of this "
        "ZeroDivisionError)\n"
    )


def test_json_has_no_nan(capsys):
    showing.print_json({"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf}, "e": (True,)})
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": [1.5, None],
        "c": {"d": None},
        "e": [True],
    }


# ---------------------------------------------------------------- arl eval
@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A run that ended before its export, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for step in (10, 9):
        (tmp_path / "run" / "checkpoints" / f"step-{step}").mkdir(parents=True)
        (tmp_path / "run" / "checkpoints" / f"step-{step}" / "manifest.json").write_text("{}")
    (tmp_path / "run" / "checkpoints" / "step-11").mkdir()
    (tmp_path / "run" / "config.toml").write_text("seed = 7\n")
    (tmp_path / "empty").mkdir()
    return tmp_path / "run"


@cases(
    "line, said",
    [
        (
            "--run=run",
            "did not finish, there is no export/; try --checkpoint run/checkpoints/step-",
        ),
        ("--run=run", "step-10 (there: step-9, step-10)"),
        ("--run=nowhere", "no folder nowhere here"),
        ("--run=empty", "no config.toml in empty"),
        ("--run=run --config=run/config.toml", "give one of them"),
        ("--checkpoint=/", "manifest.json is missing; expected RUN/checkpoints/step-N"),
        ("--checkpoint=nowhere", "no such folder"),
        ("--checkpoint=run/checkpoints/step-11", "manifest.json is missing"),
        ("--checkpoint=run", "try run/checkpoints/step-10"),
    ],
)
def test_what_cannot_be_evaluated_is_explained(arl, run, line, said):
    code, _, err = arl("eval", *line.split())
    assert code == 2
    assert said in err


def test_a_run_without_anything_to_evaluate_says_so(arl, run):
    run.joinpath("checkpoints").rename(run / "moved")
    _, _, err = arl("eval", "--run=run")
    assert "neither export/ nor checkpoints/" in err


def evaluated(*argv: str):
    (asked,) = eval_arguments.evaluated(cli.parse(["eval", *argv]))
    return asked.config.seed, asked.config.model.path, asked.checkpoint


@cases("command", ["audit", "ledger", "timeline", "reverify", "replay --step=3"])
def test_a_run_that_is_not_there_is_named(arl, command):
    code, _, err = arl(*command.split(), "runs/none")
    assert (code, "no folder runs/none here" in err) == (2, True)


def test_a_checkpoint_brings_the_configuration_of_its_run(run):
    step = run / "checkpoints" / "step-9"
    assert evaluated("--checkpoint=run/checkpoints/step-9") == (7, "bundled", step)
    (asked,) = eval_arguments.evaluated(cli.parse(["eval", f"--checkpoint={step}"]))
    assert asked.model == "run/checkpoints/step-9", "as one would type it"
    (run.parent / "own.toml").write_text("seed = 8")
    assert evaluated(f"--checkpoint={step}", "--config=own.toml") == (8, "bundled", step)


def test_a_run_brings_its_configuration_and_export(run):
    (run / "export").mkdir()
    assert evaluated("--run=run") == (7, "run/export", None)
    assert evaluated("--run=run", "--model.path=other", "--seed=3") == (3, "other", None)
    assert evaluated("--run=run", "--engine=openai", "--model=gpt") == (7, "gpt", None)


def test_a_run_s_weights_are_not_at_an_endpoint(arl, run):
    (run / "export").mkdir()
    code, _, err = arl("eval", "--run=run", "--engine=openai")
    assert (code, "add --model NAME" in err) == (2, True)


# ---------------------------------------------------------------- processes of their own
def test_the_trainer_wants_its_token(arl, monkeypatch):
    monkeypatch.delenv("ARL_TOKEN", raising=False)
    needed = ("--run=r", "--weights=w", "--controller=c", "--rendezvous=z")
    code, _, err = arl("trainer", *needed)
    assert code == 2
    assert "ARL_TOKEN is not set" in err


SLEEPER = """
import asyncio
from agentgym_rl.cli import main as cli
from agentgym_rl.cli.command import Command
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible

async def main():
    try:
        print("ready", flush=True)
        await asyncio.sleep(30)
    finally:
        print("closing", flush=True)
        await asyncio.sleep(CLOSING_S)
        print("closed", flush=True)

log.setup()
sleep = Command(summary="sleep", run=lambda args: run_interruptible(main))
register_extension("commands", "sleep", sleep)
cli.main(["sleep"])
"""


def interrupted(*numbers: int, closing_s: float = 0.1, shell: str = 'exec "$@"'):
    """(exit code, lines said) of a run that gets each signal after the line that answers the
    one before."""
    script = [sys.executable, "-c", SLEEPER.replace("CLOSING_S", str(closing_s))]
    with subprocess.Popen(
        ["sh", "-c", shell, "sh", *script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout
        said = []
        for number in numbers:
            said.append(process.stdout.readline())
            os.kill(process.pid, number)
        said += process.stdout.readlines()
    return process.returncode, [line.decode().strip() for line in said]


@pytest.mark.slow
@cases("number", [signal.SIGINT, signal.SIGTERM])
@cases("shell", ['exec "$@"', "trap '' INT; exec \"$@\""])
def test_an_interrupt_closes_everything(number, shell):
    end = ["ready", "closing", "closed", "arl: interrupted"]
    assert interrupted(number, shell=shell) == (130, end)


def test_a_second_interrupt_waits_for_the_end():
    code, said = interrupted(signal.SIGINT, signal.SIGINT, closing_s=0.5)
    assert (code, said[:2], said[-2:]) == (
        130,
        ["ready", "closing"],
        ["closed", "arl: interrupted"],
    )
    assert "a second signal ends the process at once" in said[2]
    assert len(said) == 5


def test_two_interrupts_while_the_loop_is_blocked_close_everything(monkeypatch):
    twice = "import os, signal; [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]; "
    script = SLEEPER.replace('print("ready", flush=True)', twice + 'print("ready", flush=True)')
    monkeypatch.setattr(sys.modules[__name__], "SLEEPER", script)
    code, said = interrupted()
    assert (code, said[0], said[-1]) == (130, "ready", "arl: interrupted")
    assert "closed" in said


def test_a_third_interrupt_leaves_at_once():
    code, said = interrupted(*[signal.SIGINT] * 3, closing_s=60)
    assert (code, said[:2], said[-1]) == (130, ["ready", "closing"], "arl: interrupted")
    assert len(said) == 4


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("train --env math", "env.options.data"),
        ("train --env math --init sft", "init.data"),
        ("train --env math --init.method=sft", "init.data"),
        ("train --config warmed.toml", "init.data"),
        ("train --config warmed.toml --init none", "env.options.data"),
        ("train --config warmed.toml --init.method=none", "env.options.data"),
        ("eval --config warmed.toml", "env.options.data"),
    ],
)
def test_data_is_that_of_the_warm_up_if_there_is_one(tmp_path, monkeypatch, line, key):
    monkeypatch.chdir(tmp_path)
    Path("warmed.toml").write_text('[init]\nmethod = "sft"\ndata = "other.jsonl"\n')
    found = overrides_of(parse([*line.split(), "--data", "mine.jsonl"]))
    assert found[key] == json.dumps(str(tmp_path / "mine.jsonl"))
    assert len({"env.options.data", "init.data"} & found.keys()) == 1


@pytest.mark.parametrize(
    "set_by_user", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}]
)
def test_threads_do_not_spin_long_unless_the_user_says_so(monkeypatch, set_by_user):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    found = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.pop("GOMP_SPINCOUNT", None)
    assert found == (set_by_user or {"GOMP_SPINCOUNT": "10000"})


@pytest.mark.parametrize("set_by_user", [None, "0"])
def test_matrices_get_large_pages_unless_the_user_says_so(monkeypatch, set_by_user):
    name = "THP_MEM_ALLOC_ENABLE"
    monkeypatch.setenv(name, set_by_user or "")
    if set_by_user is None:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert os.environ[name] == (set_by_user or "1")


def test_of_several_configuration_files_the_later_one_is_on_top(arl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text("seed = 3\n[rollout]\ngroup_size = 16\nmax_retries = 1\n")
    Path("b.toml").write_text("seed = 7\n[rollout]\ngroup_size = 4\n")
    args = parse(["train", "--config", "a.toml", "--config", "b.toml", "--rollout.group_size=2"])
    config = load_configuration(args)
    found = config.seed, config.rollout.group_size, config.rollout.max_retries
    assert found == (7, 2, 1)
    code, _, said = arl("train", "--config", "no.toml", "--config", "b.toml", "--dry-run")
    assert (code, "cannot read configuration no.toml" in said) == (2, True)


@cases(
    "flag, one, other",
    [
        *[("data", "a", "b"), ("preset", "dapo", "grpo"), ("run", "a", "b")],
    ],
)
def test_a_flag_that_is_given_twice_is_refused(flag, one, other):
    with pytest.raises(ConfigError, match=f"--{flag} is given twice, as {one} and as {other}"):
        parse(["train", f"--{flag}", one, f"--{flag}={other}"])
    assert vars(parse(["train", f"--{flag}", one, f"--{flag}={one}"])).keys() <= {
        *vars(parse(["train"])).keys()
    }


def test_flags_after_those_of_a_script_override_them():
    words = ["train", "--steps=1", "--rollout.group_size=2", "--steps=3", "--rollout.group-size=4"]
    found = overrides_of(parse(words))
    assert (found["steps"], found["rollout.group_size"]) == (3, "4")


def test_commands_are_grouped_and_internal_ones_are_hidden(arl):
    _, out, _ = arl("--help")
    headings = [line[:-1] for line in out.splitlines() if re.fullmatch(r"[a-z, ]+:", line)]
    assert headings == [*GROUPS, "options"]
    shown = set(re.findall(r"(?m)^  ([a-z][a-z-]*) {2,}\w", out))
    hidden = {"engine", "rollout", "trainer", "warm-up"}
    assert shown == set(registry.command_names()) - hidden
    for name in hidden:
        assert arl(name, "--help")[0] == 0


def test_short_flags_are_those_of_keys():
    args = parse(["eval", "-m", "a", "-n", "10", "-r", "3", "-q"])
    found = overrides_of(args)
    assert args.model == ["a"]
    assert (found["eval.num_tasks"], found["eval.samples_per_task"]) == (10, 3)
    assert (found["logging.progress"], found["logging.level"]) == ("none", "warning")
    config = load_configuration(parse(["train", "-m", "a", "-v"]))
    assert (config.model.path, config.logging.level) == ("a", "debug")
    assert load_configuration(parse(["train", "-v", "--logging.level=error"])).logging.level == (
        "error"
    )


@cases(
    "line, said",
    [
        ("eval -n 3 --eval.num_tasks=4", "-n 3 and --eval.num_tasks=4: give one of them"),
        ("train -q -v", "argument -v: not allowed with argument -q"),
        ("eval -n few", "-n: expected a whole number, got 'few'"),
    ],
)
def test_short_flags_are_refused_like_others(line, said):
    with pytest.raises(ConfigError, match=said):
        overrides_of(parse(line.split()))


def test_no_flag_keeps_the_last_of_two_values():
    """A flag that is neither repeatable nor a switch takes one value, and refuses a second."""
    for name in registry.command_names():
        parser = make_parser([name])[1][name]
        for action in parser._actions:
            if action.nargs is None and action.option_strings and type(action).__name__ != "_Once":
                assert isinstance(action, argparse._AppendAction), (name, action)


@cases(
    "word, key, value",
    [
        ("rollout.group_size=4", "rollout.group_size", "4"),
        ("--rollout.group-size=4", "rollout.group_size", "4"),
        ("--cluster.sbatch.gpus-per-node=4", "cluster.sbatch.gpus-per-node", "4"),
        ("--env.options.two-words=4", "env.options.two-words", "4"),
    ],
)
def test_keys_may_be_written_as_other_programs_do(word, key, value):
    assert parse(["train", word]).overrides == {key: value}


@cases("word", ["seed=3", "steps=3", "env=math"])
def test_a_key_without_a_section_and_dashes_is_that_flag(word):
    with pytest.raises(ConfigError, match=f"did you mean --{word}[?]"):
        parse(["train", word])


def test_values_are_compared_as_they_are_read():
    """`--engine` is kept as a TOML string, and the text of another key makes it a plain one."""
    args = parse(["train", "--engine=vllm", "--cluster.allocation=vllm:d1+fsdp:d1"])
    assert load_configuration(args).engine.type == "vllm"
    args = parse(["train", '--engine.type="vllm"', '--cluster.allocation="vllm:d1+fsdp:d1"'])
    assert load_configuration(args).engine.type == "vllm"


@cases(
    "key, value, said",
    [
        ("rollout.group_size", "x", "expected a whole number (got 'x')"),
        ("rollout.group_size", "0", "too small; allowed: at least 1 (got 0)"),
        ("rollout.temperature", "hot", "expected a number (got 'hot')"),
        (
            "trainer.device",
            "gpu",
            "unknown; allowed: 'auto', 'cpu' or 'cuda'",
        ),
        ("logging.tokens", "maybe", "expected true or false (got 'maybe')"),
        ("rollout", "3", "expected a section, which is a table of keys (got 3)"),
    ],
)
def test_a_wrong_value_is_described_in_plain_words(key, value, said):
    with pytest.raises(ConfigError, match=re.escape(f"{key}: {said}")):
        load_config(None, {key: value})


def test_a_text_is_no_number(arl):
    code, _, said = arl("train", "--steps=many")
    assert (code, "--steps: expected a whole number, got 'many'" in said) == (2, True)


def test_a_misspelt_or_foreign_configuration_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text("seed = 1")
    with pytest.raises(ConfigError, match=r"bass.toml: no such file; did you mean base.toml[?]"):
        load_config(Path("bass.toml"))
    Path("a.ini").write_text("seed: 1")
    with pytest.raises(ConfigError, match=r"a.ini: .*; a configuration is TOML, or .yaml"):
        load_config(Path("a.ini"))
