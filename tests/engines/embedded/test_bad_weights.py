"""Weight files that are bad: refused with the reason, and the old weights serve on."""

import asyncio

import pytest
import torch

from agentgym_rl.core import EngineError, SamplingParams, WeightsError
from agentgym_rl.weights import write_version


def _broken(tensors, how):
    name = "model.norm.weight"
    if how == "wrong dtype":
        return tensors | {name: tensors[name].to(torch.float16)}
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}


WAYS = ["wrong dtype", "untied"]
"""Only this engine minds these; tests/kit/damage.py has the ways that all engines refuse."""


def test_a_bad_file_is_refused_and_the_old_weights_serve_on(
    model_dir, served, plain_logprobs, perturbed, call, tmp_path, subtests
):
    folder = model_dir("qwen3")
    tensors = perturbed(folder, 11)

    async def refused(client, path):
        with pytest.raises(WeightsError, match=r"/v5"):
            await client.update_weights(str(path), version=5)
        finish = client.url + "/finish_weight_update"
        status, reply = await call(finish, "POST", {"weight_version": "0.5"})
        assert (status, "no weights are staged" in str(reply)) == (400, True)
        assert (await client.info()).version == 0
        sampling = SamplingParams(max_tokens=5)
        call_ids = {"request_id": path.parent.name, "session_id": "a"}
        async for delta in client.generate([8, 9], sampling, **call_ids):
            return delta

    async def scenario():
        async with served(folder) as (client, _):
            for how in WAYS:
                (tmp_path / how).mkdir()
                path = write_version(tmp_path / how, 5, _broken(tensors, how))
                with subtests.test(how):
                    delta = await refused(client, path)
                    assert set(delta.versions) == {0}
                    assert delta.logprobs == pytest.approx(
                        plain_logprobs(folder, [8, 9], delta.token_ids), abs=1e-4
                    )

    asyncio.run(scenario())


def test_update_weights_wants_a_start_first(model_dir, served, call):
    async def scenario():
        async with served(model_dir("qwen3")) as (client, _):
            body = {"update_info": {"path": "/nowhere"}}
            return await call(client.url + "/update_weights", "POST", body)

    status, reply = asyncio.run(scenario())
    assert (status, "start_weight_update first" in str(reply)) == (400, True)


def test_weights_that_overflow_fail_the_request_and_not_the_engine(
    model_dir, served, perturbed, tmp_path
):
    good = perturbed(model_dir("qwen3"), 14)
    huge = {"model.norm.weight": torch.full_like(good["model.norm.weight"], 3e38)}
    wild = write_version(tmp_path, 1, good | huge)
    tame = write_version(tmp_path, 2, good)

    async def scenario():
        async with served(model_dir("qwen3"), ends=False) as (client, _):
            await client.update_weights(str(wild), version=1)
            sampling = SamplingParams(max_tokens=4)
            call = client.generate([5], sampling, request_id="a", session_id="a")
            with pytest.raises(EngineError, match=r"version 0\.1 gave logits that are not finite"):
                await anext(call)
            await client.update_weights(str(tame), version=2)
            async for delta in client.generate([5], sampling, request_id="b", session_id="b"):
                return delta

    assert asyncio.run(scenario()).versions == [2] * 4
