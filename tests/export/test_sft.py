"""`arl export --sft`: episodes as chat data and as exact tokens, as other tools read them."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from arl_agents.react import React
from arl_audit.sft import IGNORED, Wanted, export_sft

from agentgym_rl import Env, Step
from agentgym_rl.cli import main as cli
from agentgym_rl.config import (
    EvalConfig,
    GatewayConfig,
    RolloutConfig,
    dump_toml,
    load_config,
)
from agentgym_rl.core import ConfigError, Task, TaskSource
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.evaluate.evaluate import evaluate as play
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines
from agentgym_rl.storage import EpisodeLog, EpisodeReader
from tests.kit.someones_eval import evaluate
from tests.kit.someones_model import gold

CALL = '<tool_call>\n{{"name": "look", "arguments": {}}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
OTHER = {"type": "function", "function": {"name": "rest", "parameters": {"type": "object"}}}


class Looks(Env):
    """Task i: look, then say i. Odd tasks offer another tool too."""

    async def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed
        self.tools = [TOOL, OTHER] if self.number % 2 else [TOOL]
        return [{"role": "user", "content": f"number {self.number}"}], {}

    async def step(self, action):
        if calls := action.get("tool_calls"):
            result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sky"}
            return Step([result], 0.0, False, False, {})
        return Step([], float("5" in (action["content"] or "")), True, False, {})


class Forgetful(React):
    """Asks the same again, and goes on from there: its first conversation is a fork."""

    async def run(self, env, client, *, model, task):
        if task.seed == 2:
            other = [{"role": "user", "content": "Anything?"}]
            await client.chat.completions.create(model=model, messages=other)
        await super().run(env, client, model=model, task=task)


class Numbered(TaskSource):
    def __getitem__(self, index: int) -> Task:
        return Task(f"t{index}", index, split="train" if index == 0 else "eval")


async def _recorded(folder: Path) -> None:
    """An evaluation of four tasks on a scripted engine, kept in `folder`."""
    chat = ChatFormat.load(BUNDLED)
    replies = {  # by how many replies the episode has had, and by task
        ("number 0", 0): CALL.format('{"at": "the sky"}'),
        ("number 1", 0): CALL.format("[1"),
        ("number 2", 0): CALL.format("{}"),
        ("number 3", 0): "9",
    }

    def reply(ids):
        text = chat.text(list(ids))
        task = next((f"number {i}" for i in range(4) if f"number {i}" in text), "")
        said = replies.get((task, text.count("</tool_call>")), "5")
        return chat.encode(f"{said}<|im_end|>")

    gateway = Gateway(
        ScriptedEngine(reply), chat, config=GatewayConfig(), model_name="m", max_model_len=2048
    )
    log = EpisodeLog(folder / "episodes.db")
    with closing(log):
        async with gateway.serve() as url, AgentClients(url) as clients, asyncio.timeout(60):
            player = Player(
                Looks, Forgetful, gateway, clients, "m", Deadlines(5, 5), env_id="looks"
            )
            asked = EvalConfig(num_tasks=4, max_concurrent=1)
            rollout = RolloutConfig(max_tokens=400, max_retries=0)
            await play(asked, rollout, player, Numbered(), seed=1, keep=log.add_evaluated)
    (folder / "config.toml").write_text(dump_toml(load_config()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    asyncio.run(_recorded(folder))
    return folder


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def exported(folder, tmp_path):
    """`exported(**wanted)`: the report and the lines."""

    def export(**wanted) -> tuple[dict, list[dict]]:
        report = export_sft(folder, tmp_path / "out.jsonl", Wanted(**wanted))
        return report, lines_of(tmp_path / "out.jsonl")

    return export


def test_an_episode_is_a_line_of_messages_and_tools(exported):
    report, lines = exported()
    assert (report["episodes"], report["lines"], len(lines)) == (4, 4, 4)
    first = lines[0]
    call = {
        "id": "call_0_0",
        "type": "function",
        "function": {"name": "look", "arguments": {"at": "the sky"}},
    }
    assert first["messages"] == [
        {"role": "user", "content": "number 0"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0_0", "content": "sky"},
        {"role": "assistant", "content": "5"},
    ]
    assert (first["tools"], lines[1]["tools"]) == ([TOOL], [TOOL, OTHER])
    about = {key: first[key] for key in ("reward", "task_id", "env", "split", "policy_versions")}
    assert about == {
        **{"reward": 1.0, "task_id": "t0", "env": "looks", "split": "train"},
        "policy_versions": [0],
    }


def test_a_forked_episode_is_its_last_conversation(exported):
    report, lines = exported()
    assert report["forked"] == 1
    assert lines[2]["messages"][0]["content"] == "number 2"


def test_what_is_not_wanted_is_left_out_and_counted(exported):
    report, lines = exported(min_reward=1.0, split="eval")
    assert report["left_out"] == {"split train": 1, "reward": 1}
    assert [line["task_id"] for line in lines] == ["t1", "t2"]


def test_nothing_that_fits_is_an_error_and_no_file(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"no episode matches; left out: .*'reward': 4"):
        export_sft(folder, tmp_path / "x.jsonl", Wanted(min_reward=2.0))
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="the file exists"):
        export_sft(folder, tmp_path / "x.jsonl", Wanted())
    assert (tmp_path / "x.jsonl").read_text() == "mine"


def test_tokens_are_the_rows(folder, exported):
    report, lines = exported(form="tokens")
    assert (report["episodes"], report["lines"]) == (4, 5)  # the fork's too
    with closing(EpisodeReader(folder / "episodes.db")) as reader:
        names = reader.episode_ids(untrained=True)
        rows = [row for name in names for row in reader.trajectory(name).rows]
    for line, row in zip(lines, rows, strict=True):
        assert line["input_ids"] == row.tokens.tolist()
        sampled = [token for token in line["labels"] if token != IGNORED]
        assert sampled == row.tokens[row.turn_ids >= 0].tolist()
    chat = ChatFormat.load(BUNDLED)
    first = [token for token in lines[0]["labels"] if token != IGNORED]
    call = CALL.format('{"at": "the sky"}')
    assert chat.text(first) == f"{call}<|im_end|>5<|im_end|>"


@pytest.mark.slow
def test_datasets_and_transformers_read_it(folder, tmp_path, monkeypatch):
    """Loaded by `datasets` and rendered by the chat template: what the engine saw, to the letter,
    where the model wrote its call as the template would."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from datasets import load_dataset
    from transformers import AutoTokenizer

    for form in ("messages", "tokens"):
        export_sft(folder, tmp_path / f"{form}.jsonl", Wanted(form=form))
    files = {form: str(tmp_path / f"{form}.jsonl") for form in ("messages", "tokens")}
    loaded = {
        form: load_dataset("json", data_files=file, split="train", cache_dir=str(tmp_path / "c"))
        for form, file in files.items()
    }
    written = lines_of(tmp_path / "messages.jsonl")
    assert [dict(row) for row in loaded["messages"]] == written
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    first = loaded["messages"][0]
    text = tokenizer.apply_chat_template(first["messages"], tools=first["tools"], tokenize=False)
    seen = tokenizer.decode(loaded["tokens"][0]["input_ids"])
    assert text.rstrip() == seen.rstrip()
    for row in loaded["messages"]:
        assert tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)


def test_a_model_that_somebody_else_serves_teaches_too(tmp_path, key, capsys):
    evaluate(gold(4), out=tmp_path / "e")
    with pytest.raises(SystemExit) as end:
        cli.main(["export", "--sft", str(tmp_path / "e"), "--out", str(tmp_path / "x.jsonl")])
    out, _ = capsys.readouterr()
    assert (end.value.code, "4 lines of 4 episodes (4 eval)" in out) == (0, True)
    assert "cannot be evaluated there" in out
    line = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    assert line["tools"][0]["function"]["name"] == "calculator"
    assert line["messages"][-1]["role"] == "assistant"
    assert line["policy_versions"] == []
    with pytest.raises(ConfigError, match="'no tokens': 4"):
        export_sft(tmp_path / "e", tmp_path / "t.jsonl", Wanted(form="tokens"))


def test_what_kind_of_data_must_be_said(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["export", str(tmp_path), "--out", "x"])
    assert (end.value.code, "give one of them" in capsys.readouterr().err) == (2, True)
