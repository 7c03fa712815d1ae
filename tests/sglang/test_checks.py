"""A server that was started without something is told what; and which of two kinds it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from arl_sglang.client import SglangEngine
from arl_sglang.kind import SglangEngineConfig
from arl_vllm.kind import VllmEngineConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agentgym_rl.cluster import LocalProcesses, free_port
from agentgym_rl.config import WeightsConfig, load_config
from agentgym_rl.core import ConfigError, Interrupt, RequestRefused
from agentgym_rl.engines import EngineSetup, check_server
from agentgym_rl.engines.kind import Checked
from agentgym_rl.fleet import Fleet
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

CONFIG = SglangEngineConfig()


def check(
    url: str,
    config: Any = CONFIG,
    *,
    model_dir: Path = BUNDLED,
    interrupt: Interrupt = "keep",
) -> Checked:
    return asyncio.run(
        check_server(
            url, EngineSetup(config, WeightsConfig(), interrupt), model_dir=model_dir, timeout_s=60
        )
    )


def complaint(url: str, config: Any = CONFIG, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(url, config, **options)
    return str(caught.value)


@cases("config", [SglangEngineConfig(), VllmEngineConfig()])
def test_a_server_of_our_own_command_fits_whichever_kind_is_configured(sglang_server, config):
    checked = check(sglang_server.url + "/", config)
    assert (checked.kind, checked.has_spans) == ("sglang", True)


def test_a_server_that_is_too_short_or_of_another_dtype(sglang_server):
    config = SglangEngineConfig(max_model_len=600, dtype="bfloat16", prefix_cache="off")
    said = complaint(sglang_server.url, config)
    assert "--context-length 600 (it has 512" in said
    assert "--dtype bfloat16 (it has float32" in said
    assert "--disable-radix-cache" in said


def test_a_server_of_another_tokenizer(sglang_server, tmp_path):
    Tokenizer(WordLevel({"what": 0}, unk_token="what")).save(str(tmp_path / "tokenizer.json"))
    said = complaint(sglang_server.url, model_dir=tmp_path)
    assert f"serves another model than {tmp_path}" in said


@cases("kind", ["sglang", "vllm"])
def test_a_fleet_makes_the_client_of_the_server_that_it_finds(sglang_server, tmp_path, kind):
    overrides = {"engine.type": kind, "engine.urls": [sglang_server.url]}
    setup = EngineSetup.of(load_config(None, overrides))

    async def start() -> Any:
        async with (
            LocalProcesses(tmp_path, stop_timeout_s=1) as processes,
            Fleet(setup, tmp_path / "config.toml", processes, model_dir=BUNDLED).running() as fleet,
        ):
            info = await fleet.ready()
            server = next(iter(fleet.servers.values()))
            return info, server.engine, server.seed

    info, engine, seed = asyncio.run(start())
    assert isinstance(engine, SglangEngine)
    assert info.max_model_len == 512
    assert seed == check(sglang_server.url).seed


def test_servers_of_one_seed_are_refused(sglang_server, tmp_path):
    urls = [sglang_server.url, sglang_server.url.replace("127.0.0.1", "localhost")]
    setup = EngineSetup.of(load_config(None, {"engine.type": "sglang", "engine.urls": urls}))

    async def start() -> None:
        async with (
            LocalProcesses(tmp_path, stop_timeout_s=1) as processes,
            Fleet(setup, tmp_path / "config.toml", processes, model_dir=BUNDLED).running() as fleet,
        ):
            await fleet.ready()

    with pytest.raises(
        ConfigError, match=r"the same seed: start each with a --seed \(or --random-seed\)"
    ):
        asyncio.run(start())


def test_every_missing_flag_is_named_at_once_and_keep_is_refused_with_overlap(start_sglang):
    """Planted: a server as a user may have started it, with the overlap scheduler."""
    server = start_sglang(interrupt="recompute", flags=("--grammar-backend", "xgrammar"))
    try:
        said = complaint(server.url)
        assert "--disable-overlap-schedule (with it, an update under rollout.interrupt" in said
        assert "--grammar-backend llguidance (it has xgrammar)" in said
        assert "--disable-overlap-schedule" not in complaint(server.url, interrupt="recompute")

        async def keep() -> None:
            engine = server.client()
            try:
                await engine.pause(interrupt="keep")
            finally:
                await engine.close()

        with pytest.raises(RequestRefused, match="overlap scheduler"):
            asyncio.run(keep())
    finally:
        server.stop()


def test_nobody_there_is_said_so():
    url = f"http://127.0.0.1:{free_port()}"
    assert url in complaint(url)
