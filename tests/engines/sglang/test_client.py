"""The client of SGLang against a scripted server: what it sends, and what it makes of replies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_sglang.client import SglangEngine
from safetensors.torch import load_file

from agentgym_rl.core import (
    UNKNOWN_VERSION,
    AdapterRefused,
    ContextLengthError,
    Delta,
    EngineError,
    RequestRefused,
    SamplingParams,
    WeightsError,
    base_checksum,
)
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import write_version
from agentgym_rl.weights.adapter import named
from tests.kit.cases import cases
from tests.kit.fake_servers import SglangServer, chunk
from tests.kit.versions import part_of

STOP = {"type": "stop", "matched": 2}


def run(server: SglangServer, scenario: Callable[[SglangEngine], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        async with asyncio.timeout(120), server.running() as url:
            engine = SglangEngine(url, model_dir=BUNDLED, incarnation=1)
            try:
                return await scenario(engine)
            finally:
                await engine.close()

    return asyncio.run(play())


async def deltas(
    engine: SglangEngine,
    params: SamplingParams | None = None,
    *,
    prompt: tuple[int, ...] = (5, 6),
    **options: Any,
) -> list[Delta]:
    call = engine.generate(
        prompt,
        params or SamplingParams(9),
        **{"request_id": "r", "session_id": "s", "stream": True} | options,
    )
    return [delta async for delta in call]


def sent(server: SglangServer) -> dict[str, Any]:
    [body] = [body for path, body in server.seen if path == "/generate"]
    return body


def replying(*chunks: dict[str, Any], **server: Any) -> SglangServer:
    return SglangServer(chunks=chunks, **server)


def test_a_stream_becomes_deltas_and_the_versions_come_with_the_last():
    server = replying(
        chunk([7, 8], 2), chunk([9, 2], 4, finish=STOP, spans=[("0.3", 0, 3), ("0.4", 3, 4)])
    )
    first, last = run(server, deltas)
    assert (first.token_ids, first.logprobs, first.versions) == ([7, 8], [-0.5, -0.5], [])
    assert (last.token_ids, last.versions) == ([9, 2], [3, 3, 3, 4])
    assert (last.finish_reason, last.stop_reason) == ("stop", 2)


def test_a_request_says_everything():
    server = replying(chunk([2], 1, finish=STOP, spans=[("0.0", 0, 1)]))
    params = SamplingParams(9, 0.7, stop=("x",), stop_token_ids=(2,), seed=3)
    run(server, lambda engine: deltas(engine, params, cache_salt="v1", request_id="turn"))
    body = sent(server)
    assert re.fullmatch(r"[0-9a-f]{32}:turn", body["rid"])
    assert body["input_ids"] == [5, 6]
    assert (body["extra_key"], body["return_logprob"], body["stream"]) == ("v1", True, True)
    assert body["sampling_params"] == {
        **{"max_new_tokens": 9, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0},
        **{"stop": ["x"], "stop_token_ids": [2]},
    }


def test_no_request_id_is_the_beginning_of_another():
    """SGLang aborts every request whose id begins with the aborted one."""
    names = ["a", "ab", "a.1", "1:a", "11:a", "x" * 10, "x" * 11]
    rids = [f"{len(name)}:{name}" for name in names]
    assert not [1 for one in rids for other in rids if one != other and other.startswith(one)]


@cases("deterministic, seed", [(True, 3), (False, None)])
def test_a_seed_is_sent_only_where_it_counts(deterministic, seed):
    server = replying(
        chunk([2], 1, finish=STOP, spans=[("0.0", 0, 1)]),
        enable_deterministic_inference=deterministic,
    )
    run(server, lambda engine: deltas(engine, SamplingParams(9, seed=3)))
    assert sent(server)["sampling_params"].get("sampling_seed") == seed


def test_requests_without_a_seed_are_not_drawn_alike():
    """SGLang's deterministic inference gives all of them the same one."""
    server = replying(
        chunk([2], 1, finish=STOP, spans=[("0.0", 0, 1)]), enable_deterministic_inference=True
    )

    async def twice(engine):
        await deltas(engine)
        await deltas(engine)

    run(server, twice)
    bodies = [body for path, body in server.seen if path == "/generate"]
    one, other = (body["sampling_params"]["sampling_seed"] for body in bodies)
    assert one != other


@cases(
    "params, top_k",
    [
        (SamplingParams(9, top_p=0.5), 640),
        (SamplingParams(9, min_p=0.5), 640),
        (SamplingParams(9, top_k=700), 640),
        (SamplingParams(9, top_k=7), 7),
    ],
)
def test_a_truncated_distribution_is_asked_for_with_its_support(params, top_k):
    more = {
        "output_token_sampling_logprobs": [-0.1],
        "output_token_sampling_mask": [[7, 8]],
    }
    server = replying(chunk([7], 1, finish=STOP, spans=[("0.0", 0, 1)], **more))
    [only] = run(server, lambda engine: deltas(engine, params))
    assert (only.logprobs, only.support) == ([-0.1], [[7, 8]])
    assert sent(server)["return_sampling_mask"] is True
    assert sent(server)["sampling_params"]["top_k"] == top_k


def test_a_top_k_of_one_leaves_one_token():
    server = replying(chunk([7], 1, finish=STOP, spans=[("0.0", 0, 1)]))
    [only] = run(server, lambda engine: deltas(engine, SamplingParams(9, top_k=1)))
    assert (only.logprobs, only.support) == ([0.0], [[7]])


def test_a_long_reply_is_cut_to_the_context():
    server = replying(chunk([2], 1, finish=STOP, spans=[("0.0", 0, 1)]))
    run(server, lambda engine: deltas(engine, SamplingParams(500), prompt=(5,) * 50))
    assert sent(server)["sampling_params"]["max_new_tokens"] == 14


@cases(
    "prompt, error, says",
    [
        ((5,) * 59, ContextLengthError, "leaves no room in the context of 64"),
        ((5, 640), RequestRefused, "token 640 is not in the vocabulary, whose ids are 0 to 639"),
        ((-1,), RequestRefused, "token -1 is not in the vocabulary"),
    ],
)
def test_what_would_be_refused_or_end_the_server_is_not_sent(prompt, error, says):
    server = SglangServer()
    with pytest.raises(error, match=says):
        run(server, lambda engine: deltas(engine, prompt=prompt))
    assert "/generate" not in server.calls


@cases(
    "chunks, says",
    {
        "a log-prob is null": (
            [chunk([7], 1, finish=STOP, output_token_logprobs=[[None, 7, None]])],
            "no log-prob",
        ),
        "cumulative": ([chunk([7], 1), chunk([7, 8], 2)], "--incremental-streaming-output"),
        "of other tokens": (
            [chunk([7], 1, output_token_logprobs=[[-0.5, 8, None]])],
            "1 output_ids, and output_token_logprobs of",
        ),
        "no end": ([chunk([7], 1)], "without a finish_reason"),
        "no spans": ([chunk([7], 1, finish=STOP)], "cover 0 of 1"),
        "unnamed": ([chunk([7], 1, finish=STOP, spans=[("default", 0, 1)])], "'default'"),
    }.values(),
)
def test_a_reply_that_cannot_be_trusted_is_an_error(chunks, says):
    with pytest.raises(EngineError, match=says):
        run(replying(*chunks), deltas)


def test_an_abort_in_the_queue_repeats_no_token():
    abort = {"type": "abort", "message": "Abort in waiting queue"}
    server = replying(chunk([7, 8], 2), chunk([8], 2, finish=abort, spans=[("0.1", 0, 2)]))
    first, last = run(server, deltas)
    assert (first.token_ids, last.token_ids, last.versions) == ([7, 8], [], [1, 1])
    assert last.finish_reason == "abort"


def test_errors_in_a_stream_keep_their_kind():
    error = {"error": {"message": "bad grammar", "type": "invalid_request_error", "code": 400}}
    with pytest.raises(RequestRefused, match="bad grammar"):
        run(replying(error), deltas)


@cases("backend", ["xgrammar", None])
def test_a_grammar_needs_llguidance(backend):
    server = SglangServer(grammar_backend=backend)
    params = SamplingParams(9, grammar='start: "x"')
    with pytest.raises(RequestRefused, match=r"gateway\.forced=free"):
        run(server, lambda engine: deltas(engine, params))
    good = replying(chunk([2], 1, finish=STOP, spans=[("0.0", 0, 1)]))
    run(good, lambda engine: deltas(engine, params))
    assert sent(good)["sampling_params"]["ebnf"] == 'start: "x"'


# ---------------------------------------------------------------- pauses, versions
def test_a_pause_is_over_only_once_the_scheduler_has_answered():
    server = SglangServer(disable_overlap_schedule=True)

    async def scenario(engine):
        for interrupt in ("keep", "recompute", "abort"):
            await engine.pause(interrupt=interrupt)
            await engine.resume()

    run(server, scenario)
    steps = [path for path in server.calls if path != "/v1/models"]
    assert steps[1:] == [
        *("/pause_generation", "/server_info", "/continue_generation"),
        *("/pause_generation", "/flush_cache", "/continue_generation"),
        *("/pause_generation", "/continue_generation"),
    ]


@cases("interrupt, says", [("keep", "--disable-overlap-schedule"), ("wait", "no pause that waits")])
def test_a_pause_that_would_not_be_exact_is_refused(interrupt, says):
    server = SglangServer()
    with pytest.raises(RequestRefused, match=says):
        run(server, lambda engine: engine.pause(interrupt=interrupt))
    assert "/pause_generation" not in server.calls


def test_a_pause_that_fails_half_way_is_undone():
    server = SglangServer(broken=["/flush_cache"])
    with pytest.raises(RequestRefused, match="flush_cache broke"):
        run(server, lambda engine: engine.pause(interrupt="recompute"))
    assert server.paused == ""


def test_versions_and_what_it_tells_of_itself():
    server = SglangServer()

    async def scenario(engine):
        info = await engine.info()
        await engine.name_version(4)
        named = server.label, await engine.served_version()
        server.label = "default"
        return info, named, await engine.served_version()

    info, named, unnamed = run(server, scenario)
    assert (info.model, info.max_model_len, info.version) == ("policy", 64, 0)
    assert named == ("1.4", 4)
    assert unnamed == UNKNOWN_VERSION


def test_its_load_is_measured():
    assert run(SglangServer(), lambda engine: engine.measures()) == {
        **{"running": 3, "waiting": 2, "kv_use": 0.25, "tokens": 20, "prefilled": 31},
        **{"put_back": 0, "prompts": 0, "reused": 0},
    }


# ---------------------------------------------------------------- updates
def updated(server: SglangServer, version: Path) -> None:
    run(server, lambda engine: engine.update_weights(str(version), version=7))


def test_an_update_pauses_loads_and_resumes(tmp_path):
    server = SglangServer()
    updated(server, write_version(tmp_path, 7, load_file(BUNDLED / "model.safetensors")))
    assert (server.label, server.paused) == ("1.7", "")
    [body] = [body for path, body in server.seen if path == "/update_weights_from_disk"]
    assert body["flush_cache"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["v7"]


@cases(
    "change, says",
    [
        (lambda it: it.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda it: it.update(extra=torch.zeros(2)), "extra is not of this model"),
        (
            lambda it: it.update({"model.norm.weight": torch.zeros(64)}),
            r"model.norm.weight has shape \[64\], the model has \[128\]",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_never_loaded(tmp_path, change, says):
    """SGLang itself would load it, and serve a mixture."""
    tensors = load_file(BUNDLED / "model.safetensors")
    change(tensors)
    version = write_version(tmp_path, 7, tensors)
    server = SglangServer()
    with pytest.raises(WeightsError, match=says):
        updated(server, version)
    assert server.calls == ["/server_info", "/v1/models"]


@cases(
    "harm, says",
    [
        (lambda data: data[:-1000], "cut short"),
        (lambda data: data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:], "has digest"),
    ],
)
def test_a_damaged_file_is_never_loaded(tmp_path, harm, says):
    version = write_version(tmp_path, 7, load_file(BUNDLED / "model.safetensors"))
    part = part_of(version)
    part.write_bytes(harm(part.read_bytes()))
    server = SglangServer()
    with pytest.raises(WeightsError, match=says):
        updated(server, version)
    assert server.calls == ["/server_info", "/v1/models"]


# ---------------------------------------------------------------- adapters
def adapter(model_dir: Path = BUNDLED, *, rank: int = 2) -> dict[str, torch.Tensor]:
    layer = "model.layers.0.self_attn.q_proj"
    rows, columns = load_file(BUNDLED / "model.safetensors")[f"{layer}.weight"].shape
    pair = torch.ones(rank, columns, dtype=torch.bfloat16), torch.ones(rows, rank)
    return named({layer: pair}, scaling=0.25, base=base_checksum(model_dir))


def test_an_adapter_is_refused_by_name_where_it_would_have_to_be_merged(tmp_path):
    server = SglangServer()
    with pytest.raises(AdapterRefused, match="are a LoRA adapter, which only a publication"):
        updated(server, write_version(tmp_path, 7, adapter()))
    assert server.label == "0.0"


def test_an_adapter_is_loaded_without_a_pause_and_again_under_its_name(tmp_path):
    server = SglangServer(enable_lora=True)
    for rank in (2, 3):
        (tmp_path / str(rank)).mkdir()
        updated(server, write_version(tmp_path / str(rank), 7, adapter(rank=rank)))
    assert server.label == "1.7"
    settings = server.adapters["arl-1.7"]
    assert (settings["r"], settings["lora_alpha"]) == (3, 0.75)
    assert settings["target_modules"] == ["k_proj", "q_proj", "v_proj"]  # joined in SGLang
    assert "/pause_generation" not in server.calls
    with pytest.raises(WeightsError, match="are no adapter"):
        updated(server, write_version(tmp_path, 8, load_file(BUNDLED / "model.safetensors")))


def test_a_request_names_the_adapter_of_its_version(tmp_path):
    """The versions of the reply tell when the server got another label, and nothing of it."""
    server = replying(
        chunk([7, 8], 2),
        chunk([9, 2], 4, finish=STOP, spans=[("0.3", 0, 3), ("0.4", 3, 4)]),
        enable_lora=True,
    )
    server.label = "0.3"
    first, last = run(server, deltas)
    assert sent(server)["lora_path"] == "arl-0.3"
    assert (first.versions, last.versions) == ([3, 3], [3, 3])


def test_a_server_that_failed_to_load_is_not_resumed(tmp_path):
    version = write_version(tmp_path, 7, load_file(BUNDLED / "model.safetensors"))
    server = SglangServer(broken=["/update_weights_from_disk"])
    with pytest.raises(WeightsError, match="broke"):
        updated(server, version)
    assert server.paused == "retract"


def test_memory_is_not_released():
    server = SglangServer()
    with pytest.raises(RequestRefused, match=r"cluster\.colocated"):
        run(server, lambda engine: engine.sleep())
    assert server.calls == []
