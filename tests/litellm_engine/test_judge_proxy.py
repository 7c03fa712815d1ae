"""A judge behind the real LiteLLM proxy, asked by its URL: alone, and in a run."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arl_envs.judge import Criterion, Judge, Panel
from test_litellm import python

from agentgym_rl.cluster import free_port
from agentgym_rl.core import ArlError
from agentgym_rl.runtime import HttpClient, serving
from tests.kit.cases import cases
from tests.kit.judge_server import ScriptedJudge, score

__all__ = ["python"]

pytestmark = pytest.mark.slow
KEY, WRONG = "sk-of-the-proxy", "sk-of-nobody"
RUBRIC = [Criterion("right", "Right?"), Criterion("brief", "Brief?", high=5)]
START_S = 200.0


def decide(request: dict[str, Any]) -> Any:
    if request["model"] == "down":
        return 503, b'{"error": {"message": "overloaded"}}'
    if request["model"] == "hangs":
        return asyncio.sleep(60)
    return score(4 if request["model"] == "strict" else 5)


@contextlib.asynccontextmanager
async def proxy(python: str, model_url: str, folder: Path) -> AsyncIterator[str]:
    """The proxy as its documentation starts it, before models of one server."""
    port, names = free_port(), ("kind", "strict", "down", "hangs")
    models = [
        {
            "model_name": name,
            "litellm_params": {
                **{"model": f"openai/{name}", "api_base": f"{model_url}/v1", "api_key": "k"}
            },
        }
        for name in names
    ]
    config = {"model_list": models, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(python).with_name("litellm")), "--config", str(folder / "config.yaml")),
            *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
            stdout=log,
            stderr=log,
            env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_S), HttpClient() as http:
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    if (await http.call(url, "GET", "/health/liveliness", timeout_s=2))[0] == 200:
                        break
                await asyncio.sleep(0.5)
        assert process.returncode is None, (folder / "log").read_text()[-3000:]
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def trained(url: str, folder: Path) -> dict[str, Any]:
    """The summary of a run of two batches whose judge is behind the proxy."""
    rows = [{"prompt": f"What is {n} + 2?"} for n in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = {"model": "kind", "base_url": f"{url}/v1", "api_key_env": "PROXY_KEY"}
    prices = {"price_prompt": 1, "price_completion": 2}
    keys = {f"--env.options.judge.{name}={value}" for name, value in (judge | prices).items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentgym_rl", "train", "--json", "--env=reward"),
        *("--agent=single_turn", "--model=bundled/math", f"--data={folder / 'rows.jsonl'}", *keys),
        *("--env.options.rubric=Is it kind?", f"--run={folder / 'run'}", "--eval.num_tasks=0"),
        *("--steps=2", "--rollout.groups_per_batch=2", "--rollout.group_size=4"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out)


async def outcome(judge: Any) -> Any:
    try:
        return await judge.score("2 + 2?", "4", RUBRIC)
    except ArlError as error:
        return type(error).__name__, str(error)


async def _found(python: str, folder: Path) -> dict[str, Any]:
    server = ScriptedJudge(decide)
    async with (
        asyncio.timeout(290),
        serving(server, host="127.0.0.1", port=0) as model_url,
        proxy(python, model_url, folder) as url,
    ):

        def judge(model: str, key: str = "PROXY_KEY", **settings: Any) -> Judge:
            settings = {"max_retries": 0, "timeout_s": 60} | settings
            return Judge(model, base_url=f"{url}/v1", api_key_env=key, **settings)

        cached = judge("kind", cache=folder / "verdicts.db")
        return {
            "rubric": await outcome(judge("kind", price_prompt=1.0, price_completion=2.0)),
            "requests": [*server.requests],
            "panel": await outcome(Panel([judge("kind"), judge("strict")], combine="mean")),
            "cached": [await outcome(cached), await outcome(cached)],
            "wrong key": await outcome(judge("kind", "WRONG_KEY")),
            "unknown": await outcome(judge("nobody")),
            "down": await outcome(judge("down")),
            "hangs": await outcome(judge("hangs", timeout_s=0.5)),
            "run": await trained(url, folder),
        }


@pytest.fixture(scope="module")
def found(python, tmp_path_factory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROXY_KEY", KEY)
        patch.setenv("WRONG_KEY", WRONG)
        return asyncio.run(_found(python, tmp_path_factory.mktemp("proxy")))


def test_a_rubric_passes_the_proxy_whole(found):
    of = found["rubric"]
    assert (of["right"], of["brief"], of["judge_calls"]) == (0.5, 1.0, 2)
    assert of["judge_usd"] == pytest.approx(2 * 120e-6)
    for request in found["requests"]:
        schema = request["response_format"]["json_schema"]["schema"]["properties"]["score"]
        assert schema["maximum"] in (5, 10)
        assert (request["model"], request["temperature"]) == ("kind", 0.0)


def test_a_panel_of_two_of_its_models_and_a_cache(found):
    assert found["panel"]["right"] == pytest.approx(0.45)
    assert [one["judge_calls"] for one in found["cached"]] == [2, 0]


@cases(
    "name, error, said",
    [
        ("wrong key", "JudgeRefusal", "it answered 40"),
        ("unknown", "JudgeRefusal", "it answered 40"),
        ("down", "InfraError", "it answered 503"),
        ("hangs", "InfraError", "TimeoutError"),
    ],
)
def test_whose_fault_a_failure_behind_the_proxy_is(found, name, error, said):
    kind, message = found[name]
    assert (kind, said in message) == (error, True), message
    assert KEY not in message
    assert WRONG not in message


def test_a_run_is_rewarded_through_the_proxy(found):
    spent = found["run"]["judges"]
    assert (found["run"]["outcomes"], spent["judge_calls"]) == ({"completed": 16}, 16)
    assert spent["judge_usd"] == pytest.approx(16 * 120e-6)
