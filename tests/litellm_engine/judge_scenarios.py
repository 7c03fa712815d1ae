"""Judges through LiteLLM's own client, run by whatever Python has it: `python judge_scenarios.py`.

Prints {"name": {"found": ..., "error": ..., "requests": [...]}} as JSON, and nothing else.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "kit"), str(Path(__file__).parent)]

from arl_envs.judge import Criterion, Judge, Panel  # noqa: E402
from arl_envs.judge import endpoint as calls  # noqa: E402
from someones_claude import SomeonesClaude  # noqa: E402

from agentgym_rl.core import ArlError  # noqa: E402
from agentgym_rl.runtime import serving  # noqa: E402
from tests.kit.judge_server import ScriptedJudge, score  # noqa: E402

calls._FIRST_WAIT_S = 0.0
RIGHT = Criterion("right", "Right?", weight=2)
RUBRIC = [RIGHT, Criterion("brief", "Brief?", high=5)]
GPT, CLAUDE = "openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5"
SECRET = "sk-secret-of-the-environment"


def judge(url: str, model: str = GPT, **settings: Any) -> Judge:
    body = {"api_base": url if model.startswith("anthropic") else f"{url}/v1"}
    body |= {} if settings.pop("key_of_environment", False) else {"api_key": "k"}
    given = {"max_retries": 0, "max_asks": 1, "extra_body": body} | settings
    return Judge(f"litellm:{model}", **given)


def ask(decide: Any, work: Callable[[str], Awaitable[Any]]) -> dict[str, Any]:
    """What became of `work` with the URL of a server that decides like this."""
    server = ScriptedJudge(decide)
    try:
        found: dict[str, Any] = {"found": server.during(work)}
    except ArlError as error:
        found = {"error": type(error).__name__, "said": str(error)}
    return found | {"requests": server.requests}


def rate(**how: Any) -> Callable[[str], Awaitable[Any]]:
    return lambda url: judge(url, **how).score("2 + 2?", "4", RUBRIC)


def by_criterion(request: dict[str, Any]) -> str:
    return score(8 if "Right?" in request["messages"][0]["content"] else 1)


async def rank(url: str) -> list[dict[str, float]]:
    return await judge(url).rank("2 + 2?", ["4", "four", "5"], "Which is right?")


async def panel(url: str) -> dict[str, float]:
    """A panel of models of two providers, each in its own API."""
    claude = SomeonesClaude(lambda messages: {"role": "assistant", "content": score(4)})
    async with serving(claude, host="127.0.0.1", port=0) as other:
        judges = [judge(url), judge(other, CLAUDE)]
        return await Panel(judges, combine="mean").score("2 + 2?", "4", [RIGHT])


async def cached(url: str) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        one = judge(url, cache=f"{folder}/verdicts.db")
        return [await one.score("2 + 2?", "4", RUBRIC) for _ in range(2)]


async def beside_the_loop(url: str) -> bool:
    """Whether the first call imports LiteLLM in another thread than the event loop's."""
    importing: list[int] = []

    class Watch(MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname.startswith("litellm."):  # LiteLLM itself is also looked for, unloaded
                importing.append(threading.get_ident())

    assert "litellm" not in sys.modules
    sys.meta_path.insert(0, Watch())
    await judge(url).score("2 + 2?", "4", [RIGHT])
    return importing[0] != threading.get_ident()


def failing_twice() -> Callable[[dict[str, Any]], Any]:
    left = [(503, b"{}"), (429, b"{}")]
    return lambda request: left.pop() if left else by_criterion(request)


DOWN = (503, b'{"error": {"message": "down"}}')
SCENARIOS = {
    "rubric": (by_criterion, rate()),
    "rank": (lambda _: score(2), rank),
    "panel": (lambda _: score(8), panel),
    "cached": (by_criterion, cached),
    "unpriced": (by_criterion, rate(model="openai/nobody-knows-it")),
    "priced at 0": (by_criterion, rate(model="openai/omni-moderation-latest")),
    "own prices": (by_criterion, rate(price_prompt=1.0, price_completion=2.0)),
    "no verdict": (lambda _: "eight", rate(max_asks=2)),
    "hangs": (lambda _: asyncio.sleep(60), rate(timeout_s=0.2)),
    "down": (lambda _: DOWN, rate()),
    "down for a while": (failing_twice(), rate(max_retries=2, max_concurrent=1)),
    "refused": (
        lambda _: (401, json.dumps({"error": {"message": f"bad {SECRET}"}}).encode()),
        rate(key_of_environment=True),
    ),
}

if __name__ == "__main__":
    found = {"beside the loop": ask(by_criterion, beside_the_loop)}
    found |= {name: ask(*scenario) for name, scenario in SCENARIOS.items()}
    print(json.dumps(found))
