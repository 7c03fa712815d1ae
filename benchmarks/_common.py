"""The parts that benchmarks share: a description of the machine, engines as processes, sampling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym_rl import __version__
from agentgym_rl.cluster import free_port
from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.engines import protocol
from agentgym_rl.models.resolve import BUNDLED

_END_TIMEOUT_S = 10.0


def peer_python(name: str) -> str:
    """Return the interpreter that has the peer `name`; "": benchmarks skip it, by name.

    It is the one that ARL_NAME_PYTHON names, or the environment next to this one, as `make
    bench-peers` (and for vLLM `make test-vllm`) installs it.
    """
    beside = Path(f"{sys.prefix}-{name}")
    found = str(beside / "bin" / "python") if (beside / ".installed").exists() else ""
    return os.environ.get(f"ARL_{name.upper()}_PYTHON") or found


def no_peer(name: str) -> str:
    """Return why the peer `name` is skipped, and how to have it."""
    how = f"make test-{name}" if name in ("vllm", "sglang") else "make bench-peers"
    return f"{name}: {how} installs it, or ARL_{name.upper()}_PYTHON names a Python that has it"


VLLM_PYTHON = peer_python("vllm")
SGLANG_PYTHON = peer_python("sglang")


def hardware(note: str = "") -> str:
    """Return a description of the machine: CPU, cores, and `note`."""
    return f"{_cpu()}, {os.cpu_count()} cores{', ' if note else ''}{note}"


def versions(*names: str) -> dict[str, str]:
    """Return the versions of this package, which need not be installed, and of the named
    distributions."""
    others = ("torch", "transformers", *names)
    return {"agentgym-rl": __version__} | {name: version(name) for name in others}


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def engine_server(config: Config, *flags: str) -> Iterator[str]:
    """Start an `arl engine` process that ends with the context, including its children; yield its
    URL."""
    with engine_process(config, *flags) as (url, _):
        yield url


@contextlib.contextmanager
def engine_process(config: Config, *flags: str) -> Iterator[tuple[str, int]]:
    """Start an `arl engine` process; yield its URL and process id; see `engine_server`."""
    port, url = free_port(), ""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as folder:
        file, log = Path(folder) / "config.toml", Path(folder) / "engine.log"
        file.write_text(dump_toml(config))
        command = [sys.executable, "-m", "agentgym_rl", "engine", f"--config={file}"]
        threads = str(config.own_engine.num_threads)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--port={port}", *flags],
                stdout=output,
                stderr=output,
                env=os.environ | {"OMP_NUM_THREADS": threads, "ARL_DIE_WITH_PARENT": "1"},
                start_new_session=True,
            )
        try:
            _wait_ready(process, url, log, config.own_engine.start_timeout_s)
            yield url, process.pid
        finally:
            end(process)


def _wait_ready(process: subprocess.Popen[Any], url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=2):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the engine did not start:\n{log.read_text()[-3000:]}")


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and its group: SIGTERM, then SIGKILL for the processes that are left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)


def over_http(
    url: str, prompts: Sequence[list[int]], lengths: Sequence[int], *, timeout_s: float
) -> list[protocol.Choice]:
    """Sample `lengths[i]` tokens after `prompts[i]` from an engine, all at once."""
    return asyncio.run(_over_http(url, prompts, lengths, timeout_s))


async def _over_http(
    url: str, prompts: Sequence[list[int]], lengths: Sequence[int], timeout_s: float
) -> list[protocol.Choice]:
    import aiohttp
    import msgspec

    decode = msgspec.json.Decoder(protocol.GenerateReply).decode

    async def one(session: aiohttp.ClientSession, prompt: list[int], length: int) -> Any:
        params = protocol.SamplingBody(max_tokens=length, ignore_eos=True, logprobs=0)
        body = msgspec.json.encode(protocol.GenerateBody(token_ids=prompt, sampling_params=params))
        async with session.post(url + protocol.GENERATE, data=body) as response:
            choice = decode(await response.read()).choices[0]
        assert choice.token_ids is not None
        assert choice.logprobs is not None
        assert len(choice.logprobs.content) == len(choice.token_ids) == length
        return choice

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        asyncio.timeout(timeout_s),
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session,
        asyncio.TaskGroup() as tasks,
    ):
        pairs = zip(prompts, lengths, strict=True)
        jobs = [tasks.create_task(one(session, *pair)) for pair in pairs]
    return [job.result() for job in jobs]


def generate(model: Any, prompts: Sequence[list[int]], num_tokens: int) -> Tensor:
    """Sample `num_tokens` after each prompt by `generate`, as one batch: [b, L + num_tokens]."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert output.shape[1] == longest + num_tokens
    return output


def qwen3(folder: Path, *, hidden: int, layers: int, vocab: int = 4096, seed: int = 0) -> int:
    """Save a random Qwen3 with the bundled tokenizer to `folder`; its number of parameters.

    No token ends a reply, so replies have the requested length.
    """
    torch.manual_seed(seed)
    shape = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(shape)
    model.save_pretrained(folder)
    shutil.copyfile(BUNDLED / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    settings.pop("eos_token", None)  # vLLM would stop at it
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model.num_parameters()


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def model_config(model: Path, overrides: Sequence[tuple[str, Any]] = ()) -> Config:
    """Return the default configuration with another model and `overrides` (dotted keys)."""
    return load_config(None, {"model.path": str(model), **dict(overrides)})
