"""Several models, one table: the same tasks, paired differences, and the same again of folders."""

import asyncio
import json

import pytest

from agentgym_rl.cli import eval_targets as eval_arguments
from agentgym_rl.cli import main as cli
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError
from agentgym_rl.evaluate import compare, compare_folders, evaluate_all
from agentgym_rl.report import make_progress
from agentgym_rl.runtime import serving
from tests.kit.cases import cases
from tests.kit.someones_eval import QUICK
from tests.kit.someones_model import SomeonesModel, gold, nonsense

pytestmark = pytest.mark.usefixtures("key")

TASKS = 8


class Both(SomeonesModel):
    """Three models at one URL: `good` knows everything, `half` every other task, `bad` none."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.perfect = gold(TASKS)
        self.questions: list[str] = []

    def answer(self, messages):
        question = messages[1]["content"]
        self.questions.extend([question] if question not in self.questions else [])
        every = self.questions.index(question) % 2
        knows = {"good": 1, "half": every, "bad": 0}[self.requests[-1]["model"]]
        return (self.perfect if knows else nonsense)(messages)


async def _evaluated(out, names, **settings):
    async with serving(Both(), host="127.0.0.1", port=0) as url:
        values = QUICK | {"engine.base_url": f"{url}/v1", "eval.num_tasks": TASKS} | settings
        values = {key: value for key, value in values.items() if key != "model.path"}
        flags = [f"--{key}={value}" for key, value in values.items()]
        models = [f"--model={name}" for name in names]
        asked = eval_arguments.evaluated(cli.parse(["eval", "--env=math", *flags, *models]))
        return await evaluate_all(asked, make_progress("none", total_steps=0), out=out)


def evaluated(out=None, names=("half", "good"), **settings):
    return asyncio.run(_evaluated(out, names, **{"eval.max_concurrent": 1} | settings))


def test_models_are_compared_task_by_task():
    found = compare(evaluated())
    half, good = found["models"]
    assert (half["model"], half["reward"], half["difference"]) == ("half", 0.5, None)
    assert (good["model"], good["reward"], found["difference_to"]) == ("good", 1.0, "half")
    assert good["difference"]["value"] == 0.5
    low, high = good["difference"]["ci"]
    assert 0 < low < 0.5 < high  # half of eight tasks differ by 1, by Student's error 0.189
    assert high - low == pytest.approx(2 * 1.96 * 0.189, rel=1e-2)


def test_each_model_has_a_folder_of_which_the_same_table_is_made(tmp_path):
    first = compare(evaluated(tmp_path / "cmp"))
    assert {path.name for path in (tmp_path / "cmp").iterdir()} == {"half", "good"}
    again = compare_folders([tmp_path / "cmp" / "half", tmp_path / "cmp" / "good"])
    for one, other in zip(first["models"], again["models"], strict=True):
        for key in ("model", "reward", "reward_ci", "pass_at", "difference", "turns"):
            assert one[key] == other[key], key
        assert other["finished"]


def test_folders_of_other_tasks_do_not_compare(tmp_path):
    evaluated(tmp_path / "a", names=["bad"])
    evaluated(tmp_path / "b", names=["bad"], **{"eval.seed": 1, "eval.max_concurrent": 9})
    with pytest.raises(ConfigError, match=r"other tasks .*eval.seed is 1, not 0"):
        compare_folders([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="holds no evaluation"):
        compare_folders([tmp_path])


@pytest.mark.slow
def test_the_table_as_typed(tmp_path, capsys):
    evaluated(
        tmp_path, **{"eval.samples_per_task": 2, "eval.price_prompt": 1, "eval.price_completion": 9}
    )
    folders = [str(tmp_path / name) for name in ("half", "good")]
    with pytest.raises(SystemExit) as end:
        cli.main(["eval", "--json", "--compare", *folders])
    out, err = capsys.readouterr()
    assert end.value.code == 0
    assert len(json.loads(out)["models"]) == 2
    head, half, good, *_ = err.splitlines()
    assert head.split()[:5] == ["model", "reward", "+/-", "pass@1", "pass@2"]
    assert half.startswith("half   0.500 (")
    assert good.startswith("good   1.000 (")
    assert "+0.500 (+0." in good
    assert "$" in good


@cases(
    "argv, said",
    [
        (["--model=a", "--model=a"], "--model a is given twice"),
        (["--model=a", "--model=b", "--checkpoint=c"], "make it one of them, --model c"),
        (["--compare", "x", "--model=a"], "--compare only reads folders: leave out --model"),
        (
            ["--compare", "x", "--seed=3", "--eval.seed=1"],
            "leave out keys of the configuration, --seed",
        ),
        (["--compare", "x"], "holds no evaluation"),
        (["--model=openai:a", "--model=embedded:b", "--engine.nope=1"], "unknown key engine.nope"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, monkeypatch, capsys, argv, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["eval", *argv])
    assert (end.value.code, said in capsys.readouterr().err) == (2, True)


def asked(*argv: str):
    return [
        (each.config.engine.type, each.model)
        for each in eval_arguments.evaluated(cli.parse(["eval", "--env=math", *argv]))
    ]


def test_each_model_may_have_an_engine_of_its_own():
    found = asked(
        *("--model=bundled", "--model=openai:gpt-4o-mini", "--model=litellm:bedrock/x-v1:0"),
        "--engine.max_retries=1",
    )
    assert found == [
        ("embedded", "bundled/math"),
        ("openai", "gpt-4o-mini"),
        ("litellm", "bedrock/x-v1:0"),
    ]
    assert asked("--model=ollama/llama3:8b", "--engine=litellm") == [
        ("litellm", "ollama/llama3:8b")
    ]


def test_a_model_may_be_a_run_or_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = tmp_path / "run" / "checkpoints" / "step-3"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    (tmp_path / "run" / "export").mkdir()
    (tmp_path / "run" / "config.toml").write_text("[model]\npath = 'base'\n")
    found = eval_arguments.evaluated(
        cli.parse(["eval", "--model=run", "--model=run/checkpoints/step-3", "--seed=4"])
    )
    assert [each.model for each in found] == ["run/export", "run/checkpoints/step-3"]
    assert [each.config.model.path for each in found] == ["run/export", "base"]
    assert [each.config.seed for each in found] == [4, 4]


def engines(*argv):
    found = eval_arguments.evaluated(cli.parse(["eval", "--env=math", *argv]))
    return [
        (engine.type, engine.max_model_len, engine.max_num_seqs)
        for engine in (each.config.engine for each in found)
    ]


def test_a_run_has_the_engine_it_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, kind, length in (("a", "embedded", 300), ("b", "vllm", 400)):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "export").mkdir()
        file = f"[engine]\ntype = '{kind}'\nmax_model_len = {length}\nmax_num_seqs = 7\n"
        (tmp_path / name / "config.toml").write_text(file)
    models = ("--model=a", "--model=b", "--model=bundled")
    usual = Config().engine
    plain = ("embedded", usual.max_model_len, usual.max_num_seqs)
    assert engines(*models) == [("embedded", 300, 7), ("vllm", 400, 7), plain]
    given = engines(*models, "--engine.max_num_seqs=9", "--engine.python=python3")
    assert given == [("embedded", 300, 9), ("vllm", 400, 9), ("embedded", plain[1], 9)]
    assert engines(*models, "--engine=embedded")[1] == plain
    assert engines("--model=embedded:b", "--model=a") == [plain, ("embedded", 300, 7)]
