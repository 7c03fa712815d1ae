"""A server that was started without something is told what."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from arl_vllm.kind import VllmEngineConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agentgym_rl.cluster import LocalProcesses, free_port
from agentgym_rl.config import WeightsConfig, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.engines import EngineSetup, check_server
from agentgym_rl.engines.kind import Checked
from agentgym_rl.fleet import Fleet
from agentgym_rl.models.resolve import BUNDLED

CONFIG = VllmEngineConfig()


def complaint(url: str, *, model_dir: Path = BUNDLED, config: VllmEngineConfig = CONFIG) -> str:
    with pytest.raises(ConfigError) as caught:
        check(url, model_dir=model_dir, config=config)
    return str(caught.value)


def check(url: str, *, model_dir: Path = BUNDLED, config: VllmEngineConfig = CONFIG) -> Checked:
    return asyncio.run(
        check_server(
            url, EngineSetup(config, WeightsConfig(), "keep"), model_dir=model_dir, timeout_s=30
        )
    )


def test_a_server_of_our_own_command_fits(vllm_server):
    assert check(vllm_server.url + "/").has_spans


def test_servers_of_one_seed_are_refused(vllm_server, tmp_path):
    urls = [vllm_server.url, vllm_server.url.replace("127.0.0.1", "localhost")]
    config = load_config(None, {"engine.type": "vllm", "engine.urls": urls})
    setup = EngineSetup.of(config)

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


def test_nobody_there_is_said_so():
    url = f"http://127.0.0.1:{free_port()}"
    assert url in complaint(url)


def test_a_server_that_is_too_short_or_of_another_dtype(vllm_server):
    config = VllmEngineConfig(max_model_len=600, dtype="bfloat16", prefix_cache="off")
    said = complaint(vllm_server.url, config=config)
    assert "--max-model-len 600 (it has 512" in said
    assert "--dtype bfloat16 (it has float32" in said
    assert "--no-enable-prefix-caching" in said


def test_a_server_of_another_tokenizer(vllm_server, tmp_path):
    Tokenizer(WordLevel({"what": 0}, unk_token="what")).save(str(tmp_path / "tokenizer.json"))
    said = complaint(vllm_server.url, model_dir=tmp_path)
    assert f"serves another model than {tmp_path}" in said


def test_every_missing_flag_is_named_at_once(start_vllm):
    flags = ("--no-enable-scale-out", "--logprobs-mode", "raw_logprobs")
    flags += ("--weight-transfer-config", '{"backend": "ipc"}', "--worker-extension-cls", "")
    flags += ("--structured-outputs-config.backend", "xgrammar")
    server = start_vllm(flags=flags)
    said = complaint(server.url)
    server.stop()
    assert "--enable-scale-out" in said
    assert "--logprobs-mode processed_logprobs (it has raw_logprobs)" in said
    assert """--weight-transfer-config '{"backend": "arl-shm"}' (it has ipc""" in said
    assert "--structured-outputs-config.backend guidance (it has xgrammar)" in said
    assert "--worker-extension-cls arl_vllm.transfer.StagingExtension" in said


def test_a_server_without_the_routes_that_update_it(start_vllm):
    server = start_vllm(env={"VLLM_SERVER_DEV_MODE": "0"})
    said = complaint(server.url)
    server.stop()
    assert "VLLM_SERVER_DEV_MODE=1 in its environment" in said
