"""The process of an engine, as a run starts it."""

from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.engines import engine_process
from tests.kit.cases import cases


@cases(
    "host, url",
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("node-3", "http://node-3:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_url_of_an_engine_fits_its_address(host, url):
    engine = Config.model_validate({"engine": {"type": "scripted"}}).own_engine
    found = engine_process(engine, Path("x.toml"), index=0, label="v", host=host, port=8000)
    assert found.health_url == f"{url}/health"
    assert found.argv[found.argv.index("--host") + 1] == host
