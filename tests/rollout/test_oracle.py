"""`arl export --sft --oracle`: solutions, played by agents; and the tokens that a rollout makes of
the same episodes."""

import asyncio
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from arl_agents.react import React
from arl_audit.oracle import with_slip
from arl_warmup.method import token_rows

from agentgym_rl import Env, Step, Task, make
from agentgym_rl.cli import main as cli
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import EnvError, Row
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.models import BUNDLED_MODELS
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines
from tests.kit.cases import cases

HERE = __name__.rpartition(".")[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def export(capsys, tmp_path: Path, *words: str) -> tuple[int, str, list[dict]]:
    """The exit code, all that was printed, and the lines of the file."""
    out = tmp_path / "demos.jsonl"
    with pytest.raises(SystemExit) as end:
        cli.main(["export", "--sft", "--oracle", "--out", str(out), *words])
    printed = "".join(capsys.readouterr())
    lines = out.read_text().splitlines() if out.exists() else []
    return int(str(end.value.code)), printed, [json.loads(line) for line in lines]


async def rolled_out(folder: Path, tasks: list[Task], expected: list[Row]) -> list[list[Row]]:
    """The rows of the tasks on a model that says the `expected` tokens, where the prompts of agent,
    environment and gateway are those expected."""
    chat = ChatFormat.load(folder)
    rest = iter(expected)
    row = next(rest)

    def reply(ids):
        nonlocal row
        if row.tokens[: len(ids)].tolist() != list(ids):
            row = next(rest)
        assert row.tokens[: len(ids)].tolist() == list(ids)
        cut = np.flatnonzero(~row.loss_mask[len(ids) :])
        return row.tokens[len(ids) :][: cut[0] if len(cut) else None].tolist()

    gateway = Gateway(
        ScriptedEngine(reply), chat, config=GatewayConfig(), model_name="m", max_model_len=4096
    )
    async with gateway.serve() as url, AgentClients(url) as clients, asyncio.timeout(60):
        player = Player(lambda: make("math"), React, gateway, clients, "m", Deadlines(30, 30))
        sampling = SessionSampling(max_tokens=400, train=True)
        found = [
            await player.play(task, episode_id=task.id, group_id="g", sampling=sampling)
            for task in tasks
        ]
    assert [(episode.error, episode.reward) for episode in found] == [("", 1.0)] * len(tasks)
    return [episode.rows for episode in found]


WITHOUT_TOOLS = """\
{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A template like SmolLM2's: it knows neither tools nor calls."""


def model_folder(tmp_path: Path, template: str) -> Path:
    """The tiny model, if need be with another template."""
    folder = BUNDLED_MODELS["bundled/math"]
    if template:
        folder = Path(shutil.copytree(folder, tmp_path / "model"))
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("template", ["", WITHOUT_TOOLS], ids=["own", "without_tools"])
def test_demonstrations_are_token_for_token_what_a_rollout_records(capsys, tmp_path, template):
    """The agent's requests, through the real gateway, and its calls, parsed from the tokens."""
    assert export(capsys, tmp_path, "--env=math", "--num=6", "--seed=5")[0] == 0
    folder = model_folder(tmp_path, template)
    rows = token_rows(tmp_path / "demos.jsonl", ChatFormat.load(folder), max_tokens=4096)
    source = make("math").task_source("train", seed=5)
    played = asyncio.run(rolled_out(folder, [source[i] for i in range(6)], rows))
    for row, again in zip(rows, (row for rows in played for row in rows), strict=True):
        assert row.tokens.tolist() == again.tokens.tolist()
        assert row.loss_mask.tolist() == again.loss_mask.tolist()


def test_the_seed_and_the_split_choose_the_tasks(capsys, tmp_path):
    code, printed, lines = export(
        capsys, tmp_path, "--env=math", "--num=3", "--seed=9", "--split=eval", "--json"
    )
    source = make("math").task_source("eval", seed=9)
    assert [line["task_id"] for line in lines] == [source[i].id for i in range(3)]
    report = json.loads(next(it for it in printed.splitlines() if it.startswith("{")))
    assert (code, report["splits"], report["failed"]) == (0, {"eval": 3}, [])


def test_the_agent_decides_on_the_request(capsys, tmp_path):
    """One reply without tools cannot play a solution that calls them."""
    code, printed, lines = export(capsys, tmp_path, "--env=math", "--num=2", "--agent=single_turn")
    assert (code, lines) == (2, [])
    assert "no episode matches; left out: {'reward': 2}; task math1-train-1-0: reward 0" in printed


def test_a_careless_oracle_has_one_wrong_digit_in_its_share_of_the_episodes(capsys, tmp_path):
    words = ["--env=math", "--num=40", "--seed=5"]
    _, _, right = export(capsys, tmp_path, *words)
    (tmp_path / "demos.jsonl").unlink()
    _, _, careless = export(capsys, tmp_path, *words, "--slips=0.5")
    assert [line["task_id"] for line in careless] == [line["task_id"] for line in right]
    differing = [_wrong_digits(*pair) for pair in zip(right, careless, strict=True)]
    assert set(differing) == {0, 1}
    assert 10 <= sum(differing) <= 30
    rewards = {line["reward"] for line in careless}
    assert rewards == {0.0, 1.0}
    assert all(line["reward"] == 1 for line in right)


def _wrong_digits(right: dict, careless: dict) -> int:
    """The characters that the assistant said otherwise; a solution is said to its end, whatever
    the environment replied."""
    said, slipped = (
        "".join(json.dumps(m) for m in line["messages"] if m["role"] == "assistant")
        for line in (right, careless)
    )
    pairs = [(a, b) for a, b in zip(said, slipped, strict=True) if a != b]
    assert all(a.isdigit() and b.isdigit() for a, b in pairs)
    return len(pairs)


def test_slips_need_a_digit():
    with pytest.raises(EnvError, match="no digit that could be wrong"):
        with_slip([{"role": "assistant", "content": "left"}], random.Random(0))


class Streams(React):
    """Asks for streams."""

    async def complete(self, client, **request):
        async with client.chat.completions.stream(**request) as stream:
            return await stream.get_final_completion()


class Talks(React):
    """Asks through Anthropic's API: its system prompt is no message, its results are blocks."""

    async def run(self, env, client, *, model, task):
        import anthropic

        (system, question), _ = await env.reset()
        tools = [
            {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
            for tool in env.tools
        ]
        messages = [question]
        key, url = client.api_key, str(client.base_url).removesuffix("/v1/")
        async with anthropic.AsyncAnthropic(api_key=key, base_url=url) as theirs:
            while True:
                reply = await theirs.messages.create(
                    **{"model": model, "max_tokens": 99, "messages": messages, "tools": tools},
                    system=system["content"],
                )
                calls = [block for block in reply.content if block.type == "tool_use"]
                step = await env.step(
                    {
                        "content": "".join(b.text for b in reply.content if b.type == "text"),
                        "tool_calls": [
                            {
                                **{"id": call.id, "type": "function"},
                                "function": {
                                    "name": call.name,
                                    "arguments": json.dumps(call.input),
                                },
                            }
                            for call in calls
                        ],
                    }
                )
                if step.terminated or step.truncated:
                    return
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": m["tool_call_id"],
                        "content": m["content"],
                    }
                    for m in step.observation
                ]
                said = [block.model_dump() for block in reply.content]
                messages += [{"role": "assistant", "content": said}]
                messages += [{"role": "user", "content": results}]


@pytest.mark.parametrize("agent", ["Streams", "Talks"])
def test_agents_of_other_kinds_are_answered_too(capsys, tmp_path, agent):
    words = ["--env=math", "--num=4", "--seed=5"]
    _, _, expected = export(capsys, tmp_path, *words)
    (tmp_path / "demos.jsonl").unlink()
    _, printed, lines = export(capsys, tmp_path, *words, f"--agent={HERE}:{agent}")
    assert len(lines) == 4, printed
    for line, plain in zip(lines, expected, strict=True):
        roles = [message["role"] for message in plain["messages"]]
        assert [message["role"] for message in line["messages"]] == roles
        assert line["messages"][-1]["content"] == plain["messages"][-1]["content"]


class Counted(Env):
    """Twelve tasks; the solution of every third is not known, and that of task 4 is wrong, and
    that of task 5 does not end the episode."""

    async def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed
        return [{"role": "user", "content": f"Say {self.number}."}], {}

    async def step(self, action):
        said = action["content"] or ""
        return Step([], float(said == str(self.number)), said != "...", False, {})

    def solve(self):
        if self.number % 3 == 0:
            return None
        wrong = {4: "5", 5: "..."}
        return [{"role": "assistant", "content": wrong.get(self.number, str(self.number))}]

    @classmethod
    def task_source(cls, split, *, seed, **options):
        return [Task(f"t{number}", number) for number in range(12)]


class Chance(Counted):
    """Any play may win."""

    reward_range = None


class Unsolved(Env):
    """No solution is known."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})


def test_failures_are_named_and_counted(capsys, tmp_path):
    code, printed, lines = export(capsys, tmp_path, f"--env={HERE}:Counted", "--num=8")
    assert (code, [line["task_id"] for line in lines]) == (0, ["t1", "t2", "t7"])
    assert "3 for env_error" in printed
    assert "task t0: solve() " in printed
    assert "solve() returned None: no solution of this task is known" in printed
    assert "1 for reward" in printed
    assert "task t4: reward 0" in printed
    assert "1 for agent_error" in printed
    assert "the solution has no further message" in printed


def test_the_least_reward_may_be_lower(capsys, tmp_path):
    words = [f"--env={HERE}:Chance", "--num=5", "--min-reward=0"]
    _, _, lines = export(capsys, tmp_path, *words)
    assert [line["task_id"] for line in lines] == ["t1", "t2", "t4"]


@cases(
    "words, said",
    [
        (["--env={}:Counted", "--num=13"], "has 12 train tasks, and 13 were requested: --num 12"),
        (["--env={}:Unsolved", "--num=2"], "has no oracle: its environment has no method solve"),
        (["--env={}:Chance", "--num=2"], "has no highest reward"),
        (
            ["--env={}:Counted", "--num=1"],
            "no episode matches; left out: {'env_error': 1}; task t0",
        ),
        (["--env=math"], "--oracle needs --num N"),
        (["--env=math", "--num=0"], "--oracle needs --num N"),
        (["--env=math", "--num=2", "runs/x"], "the oracle plays new episodes"),
        (["--env=math", "--num=2", "--format=tokens"], "--oracle writes messages"),
        (["--env=math", "--num=2", "--env.options.level=9"], "math has no level 9"),
        (["--env=math", "--num=2", "--agent=nobody"], "nobody"),
    ],
)
def test_a_mistake_is_an_error_and_no_file(capsys, tmp_path, words, said):
    code, printed, lines = export(capsys, tmp_path, *(word.format(HERE) for word in words))
    assert (code, lines) == (2, []), printed
    assert said in printed
    assert not list(tmp_path.iterdir())


def test_keys_of_the_oracle_are_not_ignored_without_it(capsys, tmp_path):
    for word in ("--env=math", "--num=3", "--env.options.level=2", "--seed=1"):
        with pytest.raises(SystemExit) as end:
            cli.main(["export", "--sft", "runs/x", "--out", str(tmp_path / "x.jsonl"), word])
        assert end.value.code == 2
        assert "only with --oracle" in capsys.readouterr().err
