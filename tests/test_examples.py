"""The examples: short, runnable by hand, runnable by `arl train`; the TOML equals the defaults."""

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from aiohttp import web
from arl_endpoints.endpoint import LiteLLMEngineConfig, OpenAIEngineConfig
from arl_sglang.kind import SglangEngineConfig
from arl_vllm.kind import VllmEngineConfig
from openai import AsyncOpenAI
from pydantic import BaseModel

from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.core import Task
from agentgym_rl.gym import Env, make, make_agent, spec
from agentgym_rl.models import resolve_paths
from tests.kit.cases import cases

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TASK = Task(id="t", seed=7)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def code_lines(file: Path) -> int:
    """Lines of code: not blank, no comment, no docstring."""
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return len(ast.unparse(tree).replace("\n\n", "\n").strip().splitlines())


@cases(
    "name, limit",
    [
        ("own_env.py", 25),
        ("own_agent.py", 20),
        ("own_loss.py", 20),
        ("langgraph_agent.py", 32),
        ("mcp_agent.py", 32),
        ("pydantic_ai_agent.py", 40),
        ("smolagents_agent.py", 55),
        ("structured_agent.py", 30),
    ],
)
def test_an_example_is_short(name, limit):
    file = EXAMPLES / name
    assert code_lines(file) <= limit
    lines = file.read_text().split('"""', 2)[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= limit


async def play(env: Env, replies: list[str]) -> list[tuple[float, bool]]:
    await env.reset(options={"task": TASK})
    steps = [await env.step({"role": "assistant", "content": text}) for text in replies]
    await env.close()
    return [(step.reward, step.terminated) for step in steps]


def asked() -> str:
    messages, _ = asyncio.run(make("own_env:Echo").reset(options={"task": TASK}))
    return re.findall(r"\d+", messages[0]["content"])[0]


def test_the_environment_scores():
    env, number = make("own_env:Echo"), asked()
    assert asyncio.run(play(env, [f"It is {number}"])) == [(1.0, True)]
    assert asyncio.run(play(env, ["hm", number])) == [(0.0, False), (0.5, True)]
    assert asyncio.run(play(env, ["", ""])) == [(0.0, False), (0.0, True)]


def test_the_environment_is_seeded():
    assert asked() == asked()
    messages, _ = asyncio.run(make("own_env:Echo").reset(seed=TASK.seed))
    assert asked() in messages[0]["content"]


def test_the_environment_has_tasks():
    assert spec("own_env:Echo").task_source("eval", seed=0)[0].split == "eval"


def parrot(seen: list[dict]) -> web.Application:
    """A real endpoint that answers nonsense first, then repeats the last message."""

    async def complete(request: web.Request) -> web.Response:
        seen.append(await request.json())
        text = "hm" if len(seen) == 1 else seen[-1]["messages"][-1]["content"]
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        return web.json_response(body | {"choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    return app


async def run_agent(seen: list[dict], **options: int) -> Env:
    env, agent = make("own_env:Echo"), make_agent("own_agent:Patient", **options)
    runner = web.AppRunner(parrot(seen))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with AsyncOpenAI(base_url=url, api_key="x") as client:
            await agent.run(env, client, model="policy", task=TASK)
    finally:
        await runner.cleanup()
    return env


def test_the_agent_plays():
    seen: list[dict] = []
    env = asyncio.run(run_agent(seen))
    assert [len(request["messages"]) for request in seen] == [1, 3]
    assert seen[0]["model"] == "policy"
    assert vars(env.unwrapped)["tries"] == 2


def test_the_agent_keeps_its_limit():
    seen: list[dict] = []
    asyncio.run(run_agent(seen, max_turns=1))
    assert len(seen) == 1


def keys(table: dict, prefix: str = "") -> set[str]:
    found = set()
    for key, value in table.items():
        inner = keys(value, f"{prefix}{key}.") if isinstance(value, dict) else set()
        found |= inner or {f"{prefix}{key}"}
    return found


def unset(section: BaseModel, prefix: str = "") -> set[str]:
    found = set()
    for name, value in section:
        if value is None:
            found.add(f"{prefix}{name}")
        elif isinstance(value, BaseModel):
            found |= unset(value, f"{prefix}{name}.")
    return found


def test_the_configuration_equals_the_defaults():
    assert load_config(EXAMPLES / "math.toml") == Config()


def test_the_configuration_is_whole():
    """None has no TOML form: such keys stand in a comment, `# key = value`."""
    text = (EXAMPLES / "math.toml").read_text()
    named = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", text))
    assert keys(named) == keys(tomllib.loads(dump_toml(Config()))) | unset(Config())


@cases("engine", [VllmEngineConfig(), SglangEngineConfig()])
def test_a_server_s_configuration_equals_its_defaults_and_is_whole(engine):
    file = EXAMPLES / f"{engine.type}.toml"
    assert load_config(file) == Config(engine=engine)
    named = keys(tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", file.read_text())))
    assert named == {f"engine.{name}" for name in type(engine).model_fields}


@pytest.mark.parametrize(
    ("name", "engine"),
    [("openai.toml", OpenAIEngineConfig()), ("litellm.toml", LiteLLMEngineConfig())],
    ids=["openai", "litellm"],
)
def test_the_endpoint_s_configuration_equals_its_defaults_and_is_whole(name, engine):
    text = (EXAMPLES / name).read_text()
    assert load_config(EXAMPLES / name).engine == engine
    named = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", text))["engine"]
    assert set(named) == set(type(engine).model_fields)


@cases(
    "name",
    [
        "math.toml",
        "vllm.toml",
        "sglang.toml",
        "openai.toml",
        "litellm.toml",
        "frozenlake.toml",
        "smollm2.toml",
    ],
)
def test_every_value_is_explained(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    bare = [
        line
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r"(# )?\w+ = ", line)
        and not re.search(r"\S  # \S", line)
        and not re.match(r"# \w+ (?!=)", above)
    ]
    assert bare == []


def test_the_lake_s_configuration_has_the_model_that_is_its_default():
    config = load_config(EXAMPLES / "frozenlake.toml")
    assert resolve_paths(Config(env=config.env)).model == config.model


SMALL = {
    "steps": 2,
    "rollout.groups_per_batch": 2,
    "rollout.group_size": 2,
    "trainer.num_minibatches": 1,
    "eval.num_tasks": 8,
    "rollout.max_tokens": 16,
}


def train(tmp_path: Path, *argv: str) -> dict:
    arl = [sys.executable, "-c", "from agentgym_rl.cli.main import main; main()"]
    small = [f"--{key}={value}" for key, value in SMALL.items()]
    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*arl, "train", *argv, *small, "--json", "--run", str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


GSM8K = {"question": "Six times seven?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [["--engine.urls=['http://127.0.0.1:9']"], ["--engine.python={vllm}"]], ids=str
)
def test_gsm8k_would_start(tmp_path, engine):
    """On rows of its form, with the tiny model: nothing is downloaded."""
    vllm = os.environ.get("ARL_VLLM_PYTHON")
    if "{vllm}" in engine[0] and not vllm:
        pytest.skip("ARL_VLLM_PYTHON is not set: run make test-vllm")
    for name in ("train", "test"):
        row = GSM8K | {"question": f"{name}: {GSM8K['question']}"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    rows = "--env.options.rows={path = 'train.jsonl', eval_path = 'test.jsonl'}"
    words = [engine[0].format(vllm=vllm), rows, "--model", "bundled", "--dry-run"]
    command = [sys.executable, "-m", "agentgym_rl", "train"]
    done = subprocess.run(
        [*command, "--config", str(EXAMPLES / "gsm8k.toml"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "trainer-0" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("short", [True, False], ids=["data", "rows"])
def test_gsm8k_is_evaluated_on_files_with_another_engine_and_model(tmp_path, short):
    """As the head of the file shows: no other key has to be removed."""
    rows = [GSM8K | {"question": f"{n}: {GSM8K['question']}"} for n in range(5)]
    long = {"question": "Longer?", "answer": "<<1+1=2>>2 <<2+1=3>>3 <<3+1=4>>4\n#### 4"}
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, long]))
    words = [f"--env.options.eval_data={file}", "--env.options.rows.max_calculations=2"]
    if not short:
        words = [f"--env.options.rows={{eval_path = '{file}', max_calculations = 2}}"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "agentgym_rl", "eval", "--json"),
            *("--config", str(EXAMPLES / "gsm8k.toml"), "--engine", "embedded"),
            *("--engine.dtype=float32", "--model", "bundled", "--eval.temperature=0"),
            *("--agent", "react", "--env.options.calculator_for_rows=true"),
            *("--rollout.max_tokens=16", *words),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["num_tasks"], report["outcomes"]) == (5, {"completed": 5})


@pytest.mark.slow
def test_the_pipeline_of_smollm2_runs_on_the_tiny_model(tmp_path):
    """Demonstrations, supervised training and RL, as `make real` runs them."""
    config, demos = ("--config", str(EXAMPLES / "smollm2.toml")), tmp_path / "demos.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "agentgym_rl", "export", "--sft", "--oracle", *config),
            *("--num", "8", "--out", str(demos), "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["episodes"] == 8, done.stderr
    result = train(tmp_path, *config, "--model", "bundled", f"--data={demos}")
    assert (result["steps"], result["eval_after"] is None) == (2, False)
    warmed_up = json.loads((tmp_path / "run" / "init" / "warmup.json").read_text())
    assert (warmed_up["rows"], warmed_up["data"]) == (8, str(demos))


@pytest.mark.slow
def test_train_on_the_own_environment_with_the_own_agent(tmp_path):
    assert train(tmp_path, "--env", "own_env:Echo", "--agent", "own_agent:Patient")["steps"] == 2


@pytest.mark.slow
def test_train_from_a_configuration(tmp_path):
    assert train(tmp_path, "--config", str(EXAMPLES / "frozenlake.toml"))["steps"] == 2
    assert load_config(tmp_path / "run" / "config.toml").steps == 2


@pytest.mark.slow
def test_train_with_the_own_loss_on_two_ranks(tmp_path):
    own = ["--algo.loss=own_loss:topr", "--algo.loss_options={least = 0.1}"]
    assert train(tmp_path, *own, "--trainer.num_ranks=2")["steps"] == 2


def test_the_reward_example_scores_and_its_data_is_read(tmp_path):
    import reward  # type: ignore[import-not-found]

    data = tmp_path / "sums.jsonl"
    reward.main(str(data), 50)
    env = make("reward:reward:score", data=str(data))
    messages, _ = asyncio.run(env.reset(seed=1))
    a, b = map(int, re.findall(r"\d+", messages[0]["content"]))
    step = asyncio.run(env.step({"role": "assistant", "content": f"{a + b}"}))
    assert step.reward == 1.2
    assert step.info["reward_components"] == {"right": 1.0, "brief": 1.0}


@pytest.mark.slow
def test_train_on_a_reward_function(tmp_path):
    script = [sys.executable, str(EXAMPLES / "reward.py"), str(tmp_path / "sums.jsonl")]
    subprocess.run(script, check=True, timeout=60)
    env = ["--env", "reward:reward:score"]
    result = train(tmp_path, *env, "--data", "sums.jsonl", "--agent", "single_turn")
    assert result["steps"] == 2
    assert result["eval_after"] is not None
    config = load_config(tmp_path / "run" / "config.toml")
    assert config.env.options["data"] == str(tmp_path / "sums.jsonl")


@pytest.mark.slow
def test_a_run_names_the_model_that_was_bundled_for_its_environment(tmp_path):
    assert train(tmp_path, "--env", "tools")["steps"] == 2
    assert load_config(tmp_path / "run" / "config.toml").model.path == "bundled/tools"
