"""The engine as a process: ready line, signals, and deaths of several kinds."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from agentgym_rl.core import EngineError, SamplingParams
from agentgym_rl.engines import HttpEngine

pytestmark = pytest.mark.slow

SERVE = """
import json, sys
from pathlib import Path
from arl_embedded.section import EmbeddedEngineConfig
from arl_embedded import fused, main, model
options = json.loads(sys.argv[2])
if dies_after := options.pop("dies_after", None):
    class Dying(fused.FusedDecoder):
        def decode(self, tokens, positions, segments):
            if segments[0].length > dies_after:
                raise RuntimeError("the decoder broke")
            return super().decode(tokens, positions, segments)
    model.FusedDecoder = Dying
main.serve(model_dir=Path(sys.argv[1]), config=EmbeddedEngineConfig(device="cpu", **options))
"""


@contextmanager
def _process(folder, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("engine ready on http://127.0.0.1:"), process.stderr.read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=60)


async def _generate(url, prompt):
    client = HttpEngine(url, timeout_s=20)
    try:
        params = SamplingParams(max_tokens=100)
        stream = client.generate(prompt, params, request_id="a", session_id="a")
        return [delta async for delta in stream]
    finally:
        await client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_requests_open(model_dir, number):
    """Two of them, on a machine that does nothing else."""

    async def scenario(process, url):
        params = SamplingParams(max_tokens=250)
        client = HttpEngine(url, timeout_s=20)
        stream = client.generate([5], params, request_id="a", session_id="a", stream=True)
        await anext(stream)
        process.send_signal(number)
        with pytest.raises(EngineError):
            async for _ in stream:
                pass
        await client.close()

    with _process(model_dir("qwen3")) as (process, url):
        asyncio.run(scenario(process, url))
        assert process.wait(60) == 0


def test_a_killed_engine_is_an_engine_error(model_dir):
    async def scenario(process, url):
        params = SamplingParams(max_tokens=250)
        client = HttpEngine(url, timeout_s=20)
        stream = client.generate([5], params, request_id="a", session_id="a", stream=True)
        await anext(stream)
        process.kill()
        with pytest.raises(EngineError, match=url):
            async for _ in stream:
                pass
        with pytest.raises(EngineError, match=url):
            await client.info()
        await client.close()

    with _process(model_dir("qwen3")) as (process, url):
        asyncio.run(scenario(process, url))


def test_a_dead_decode_thread_ends_the_process_with_its_traceback(model_dir, call):
    async def scenario(url):
        with pytest.raises(EngineError, match="the decoder broke"):
            await _generate(url, [5] * 58)  # longer than what the self-check decodes
        status, reply = await call(url + "/health")
        assert (status, "the decoder broke" in str(reply)) == (503, True)

    with _process(model_dir("qwen3"), dies_after=60) as (process, url):
        asyncio.run(scenario(url))
        assert process.wait(60) not in (0, None)
        assert "the decoder broke" in process.stderr.read()


def test_a_folder_without_a_model_is_a_config_error(tmp_path):
    command = [sys.executable, "-c", SERVE, str(tmp_path), "{}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "ConfigError" in result.stderr
    assert str(tmp_path) in result.stderr
