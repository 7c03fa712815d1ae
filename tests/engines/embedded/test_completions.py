"""The embedded engine's `/v1/completions` and `/v1/models`, asked by the OpenAI SDK."""

import asyncio
from dataclasses import replace

import numpy as np
import openai
import pytest
import torch
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.served_teachers import ServedTeachers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.core import SamplingParams, Task
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import Policy, join_world
from tests.docs.blocks import blocks
from tests.kit.cases import cases
from tests.kit.groups import make_group, make_row

PROMPT = [5, 6, 7]
TOKENIZER = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
TEXT = "What is 12 * 34?"


def _run(served, scenario, folder=BUNDLED, **options):
    async def play():
        async with asyncio.timeout(120), served(folder, **options) as (client, engine):
            sdk = openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0)
            async with sdk:
                return await scenario(sdk, client, engine)

    return asyncio.run(play())


async def _complete(sdk, prompt=PROMPT, **more):
    asked = {"model": "tiny", "max_tokens": 12, "seed": 3, **more}
    return await sdk.completions.create(prompt=prompt, **asked)


async def _reply(client, prompt=PROMPT, **sampling):
    params = SamplingParams(**{"max_tokens": 12, "seed": 3, **sampling})
    call = client.generate(prompt, params, request_id="a", session_id="a")
    return [delta async for delta in call][-1]


def test_models_are_listed(served):
    async def scenario(sdk, *_):
        return [model async for model in sdk.models.list()]

    [model] = _run(served, scenario)
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "agentgym-rl")
    assert model.created > 10**9


@cases("prompt", [PROMPT, TEXT])
def test_a_completion_has_the_tokens_and_log_probs_of_the_token_route(served, prompt):
    ids = prompt if prompt is PROMPT else TOKENIZER.encode(prompt).ids

    async def scenario(sdk, client, _):
        more = {"logprobs": 0, "extra_body": {"return_token_ids": True}}
        return await _complete(sdk, prompt, **more), await _reply(client, ids)

    found, reply = _run(served, scenario, ends=False)
    [choice] = found.choices
    assert choice.token_ids == reply.token_ids
    assert choice.prompt_token_ids == ids
    assert choice.text == TOKENIZER.decode(reply.token_ids)
    assert choice.logprobs.token_logprobs == pytest.approx(reply.logprobs, abs=1e-5)
    assert choice.logprobs.tokens == [TOKENIZER.decode([t], False) for t in reply.token_ids]
    tops = [
        dict([pair])
        for pair in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
    ]
    assert choice.logprobs.top_logprobs == tops
    assert choice.logprobs.text_offset[0] == 0
    assert choice.finish_reason == "length"
    usage = found.usage
    counted = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    assert counted == (len(ids), 12, len(ids) + 12)


def test_several_prompts_with_several_replies_each(served):
    async def scenario(sdk, client, _):
        found = await _complete(sdk, [PROMPT, [9, 9]], n=2)
        alone = [
            await _reply(client, prompt, seed=3 + number)
            for prompt in (PROMPT, [9, 9])
            for number in range(2)
        ]
        return found, alone

    found, alone = _run(served, scenario, ends=False)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [c.text for c in found.choices] == [TOKENIZER.decode(r.token_ids) for r in alone]
    assert len({choice.text for choice in found.choices}) == 4
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, 48)


@cases("stop", [None, "two"])
def test_a_stream_adds_up_to_the_whole(served, stop):
    async def scenario(sdk, *_):
        more = {"max_tokens": 60, "n": 2, "logprobs": 0, "temperature": 1.5}
        if stop is not None:
            whole = await _complete(sdk, TEXT, **more)
            more["stop"] = [whole.choices[0].text[9:12], "\0never"]
        whole = await _complete(sdk, TEXT, **more)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return whole, [chunk async for chunk in await _complete(sdk, TEXT, **more, **options)]

    whole, chunks = _run(served, scenario, ends=False)
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        logprobs = [x for part in parts for x in part.logprobs.token_logprobs]
        assert logprobs == pytest.approx(choice.logprobs.token_logprobs, abs=1e-5)
        offsets = [x for part in parts for x in part.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == choice.finish_reason
    if stop is not None:
        assert whole.choices[0].finish_reason == "stop"


def test_a_stop_string_and_an_end_are_not_part_of_the_text(served):
    async def scenario(sdk, client, _):
        free = await _complete(sdk, TEXT, max_tokens=40)
        text = free.choices[0].text
        cut = await _complete(sdk, TEXT, max_tokens=40, stop=text[6:9])
        reply = await _reply(client, TOKENIZER.encode(TEXT).ids, max_tokens=40)
        ids = {"stop_token_ids": [reply.token_ids[4]], "return_token_ids": True}
        return text, cut.choices[0], (await _complete(sdk, TEXT, extra_body=ids)).choices[0]

    text, cut, ended = _run(served, scenario, ends=False)
    assert (cut.text, cut.finish_reason) == (text[: text.find(text[6:9])], "stop")
    assert cut.stop_reason == text[6:9]
    assert ended.finish_reason == "stop"
    assert ended.text == TOKENIZER.decode(ended.token_ids[:-1])


REFUSED = {
    "another model": {"model": "gpt-4o"},
    "no prompt": {"prompt": []},
    "an empty text": {"prompt": ""},
    "mixed prompts": {"prompt": ["a", 1]},
    "no token": {"prompt": [640]},
    "alternatives": {"logprobs": 5},
    "a suffix": {"suffix": "x"},
    "echo and a reply": {"echo": True, "logprobs": 0},
    "echo without log-probs": {"echo": True, "max_tokens": 0},
    "echo of one token": {"echo": True, "max_tokens": 0, "logprobs": 0, "prompt": [5]},
    "echo of no token": {"echo": True, "max_tokens": 0, "logprobs": 0, "prompt": [5, 640]},
    "echo at a temperature": {"echo": True, "max_tokens": 0, "logprobs": 0, "temperature": 0.5},
    "nothing": {"max_tokens": 0},
    "a penalty": {"presence_penalty": 0.5},
    "too many replies": {"prompt": [[5]] * 100, "n": 6},
    "a long prompt": {"prompt": [5] * 300},
    "an unknown field": {"extra_body": {"temperatur": 1}},
}


def test_what_is_not_served_is_refused_and_the_engine_lives(served, subtests):
    async def scenario(sdk, client, engine):
        for name, more in REFUSED.items():
            for stream in (False, True):
                with subtests.test(name, stream=stream):
                    with pytest.raises(openai.APIStatusError) as caught:
                        await _complete(sdk, **{"prompt": PROMPT, "stream": stream, **more})
                    assert caught.value.status_code == (404 if "model" in more else 400)
                    assert caught.value.body["message"]
        assert not engine.loop.counters.running
        return await _complete(sdk, echo=False, presence_penalty=0, user="me", best_of=1)

    assert _run(served, scenario, ends=False).choices[0].finish_reason == "length"


@cases("prompt", [PROMPT + [9] * 40, TEXT])
def test_an_echo_has_the_log_probs_of_the_prompt(served, prompt):
    """Of a prompt of ids and of a text; beside other requests, whose tokens are sampled."""
    ids = prompt if isinstance(prompt, list) else TOKENIZER.encode(prompt).ids
    more = {"echo": True, "max_tokens": 0, "logprobs": 1, "temperature": 1.0}

    async def scenario(sdk, client, _):
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(_reply(client))
            found = tasks.create_task(_complete(sdk, [prompt, prompt], **more))
        return found.result(), beside.result(), await _reply(client)

    found, beside, alone = _run(served, scenario, ends=False)
    assert beside.token_ids == alone.token_ids
    first, second = found.choices
    assert first.text == TOKENIZER.decode(ids)
    assert first.logprobs.token_logprobs[0] is None
    model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    with torch.inference_mode():
        expected = (
            model(torch.tensor([ids])).logits[0].log_softmax(-1)[range(len(ids) - 1), ids[1:]]
        )
    assert first.logprobs.token_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-4)
    assert second.logprobs.token_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-4)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2 * len(ids), 0)


def test_a_served_teacher_says_what_its_folder_says(served):
    """`algo.teacher.models`: the same model as a URL and in a trainer's rank."""
    row = make_row([0] * 9, prompt=40)

    async def scenario(_, client, __):
        config = TeacherConfig.model_validate({"models": client.url})
        async with ServedTeachers(config) as teachers:
            await teachers.check(BUNDLED, longest=49)
            member = replace(make_group("g", [0]).members[0], rows=[row])
            return await teachers.added(member, Task("t", 0))

    (found,) = _run(served, scenario).rows
    with join_world() as world:
        expected = Policy.load(BUNDLED, world, frozen=True).logprobs(pack_rows([row]))
    assert found.teacher_logprobs.logprobs[40:, 0] == pytest.approx(
        expected.detach().numpy(), abs=1e-4
    )
    assert np.isnan(found.teacher_logprobs.logprobs[:40]).all()


def test_who_hangs_up_ends_all_replies(served):
    async def scenario(sdk, client, engine):
        stream = await _complete(sdk, max_tokens=250, n=3, stream=True)
        await anext(aiter(stream))
        await stream.close()
        async with asyncio.timeout(60):
            while engine.loop.counters.finished.get("abort") != 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    _run(served, scenario, ends=False)


def test_completions_follow_updates_and_pauses(served):
    async def scenario(sdk, client, _):
        async with asyncio.TaskGroup() as tasks:
            await client.pause(interrupt="keep")
            late = tasks.create_task(_complete(sdk))
            await asyncio.sleep(0.05)
            assert not late.done()
            await client.resume()
        return late.result()

    assert _run(served, scenario, ends=False).choices[0].finish_reason == "length"


def test_the_block_of_the_documents_runs(served):
    [block] = [b for b in blocks("python", "docs/engines.md") if "client.completions" in b.text]

    async def scenario(sdk, client, _):
        names = {}
        code = block.text.replace("http://127.0.0.1:8000", client.url)
        await asyncio.to_thread(exec, code, names)
        names["client"].close()
        return names["reply"]

    [choice] = _run(served, scenario, ends=False).choices
    assert len(choice.logprobs.tokens) == 16
