"""What every engine promises of a reply; for what happens meanwhile see test_engine_updates.py."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time

import aiohttp
import jsonschema
import numpy as np
import openai
import pytest
import torch
from tokenizers import Tokenizer

from agentgym_rl.cluster import free_port
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ContextLengthError, Delta, EngineError, SamplingParams
from agentgym_rl.gateway import ChatFormat, ToolCall
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import GrammarCompiler
from tests.contracts.engines import LIMIT
from tests.kit.cases import cases
from tests.vllm.plain import kept_of, on_the_edge, weights_of

PROMPT = [5, 6, 7]
VOCAB = 640
EXACT = 1e-4
TOKENIZER = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


async def collect(engine, prompt=PROMPT, *, stream=False, name="a", salt="", **sampling):
    """The deltas of one reply."""
    params = SamplingParams(**{"max_tokens": 6, **sampling})
    names = {"request_id": name, "session_id": name, "cache_salt": salt}
    return [delta async for delta in engine.generate(prompt, params, stream=stream, **names)]


def joined(deltas: list[Delta]) -> Delta:
    """A reply as one delta."""
    last = deltas[-1]
    parts = {
        name: [item for delta in deltas for item in getattr(delta, name)]
        for name in ("token_ids", "logprobs", "versions", "times_s", "support")
    }
    return Delta(**parts, finish_reason=last.finish_reason, stop_reason=last.stop_reason)


async def together(engine, prompts, **sampling):
    """The replies to all prompts at once, each joining a little after the one before."""

    async def one(number, prompt):
        await asyncio.sleep(number * 0.002)
        return joined(await collect(engine, prompt, name=f"r{number}", **sampling))

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(one(n, prompt)) for n, prompt in enumerate(prompts)]
    return [job.result() for job in jobs]


def prompts(count, high=60):
    draw = random.Random(3)
    return [[draw.randrange(3, VOCAB) for _ in range(draw.randint(1, high))] for _ in range(count)]


@cases("stream", [False, True])
def test_every_token_has_a_logprob_a_version_and_a_time(play, stream):
    before = time.monotonic()
    deltas = play(lambda engine: collect(engine, stream=stream))
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.times_s) == len(delta.token_ids)
        assert all(logprob <= 0 for logprob in delta.logprobs)
        assert all(before <= t <= time.monotonic() for t in delta.times_s)
    whole = joined(deltas)
    assert len(whole.token_ids) == len(whole.versions) == 6
    assert whole.times_s == sorted(whole.times_s)
    assert set(whole.versions) == {0}


@cases("stream", [False, True])
def test_the_last_delta_alone_says_how_it_ended(play, stream):
    deltas = play(lambda engine: collect(engine, stream=stream))
    assert stream or len(deltas) == 1
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == "length"


def test_versions_come_with_their_tokens_or_with_the_last_one(play):
    deltas = play(lambda engine: collect(engine, stream=True, max_tokens=40))
    counts = [(len(delta.token_ids), len(delta.versions)) for delta in deltas]
    if play.member.streams_versions:
        assert all(tokens == versions for tokens, versions in counts)
    else:
        assert [versions for _, versions in counts] == [0] * (len(deltas) - 1) + [40]


def test_a_stream_has_the_tokens_of_a_whole_reply(play):
    async def scenario(engine):
        whole = await collect(engine, temperature=0, max_tokens=30)
        return joined(whole), joined(
            await collect(engine, stream=True, name="b", temperature=0, max_tokens=30)
        )

    whole, streamed = play(scenario)
    assert streamed.token_ids == whole.token_ids
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=EXACT)
    assert streamed.finish_reason == whole.finish_reason


def test_a_seed_makes_a_reply_repeatable_whatever_runs_beside_it(play):
    play.member.needs("seeds")

    async def scenario(engine):
        alone = joined(await collect(engine, seed=11, max_tokens=30))
        async with asyncio.TaskGroup() as tasks:
            crowd = tasks.create_task(together(engine, prompts(11), max_tokens=30))
            again = tasks.create_task(collect(engine, name="again", seed=11, max_tokens=30))
        return alone, joined(again.result()), crowd.result()

    alone, again, crowd = play(scenario)
    assert again.token_ids == alone.token_ids
    if play.member.can("model"):
        assert alone.token_ids not in [reply.token_ids for reply in crowd]


def test_a_salt_does_not_change_a_reply(play):
    async def scenario(engine):
        first = joined(await collect(engine, temperature=0, salt="v0"))
        return first, joined(await collect(engine, name="b", temperature=0))

    first, second = play(scenario)
    assert first.token_ids == second.token_ids


@cases("temperature", [0.7, 1.0, 1.3])
def test_log_probs_are_of_the_distribution_that_was_sampled_from(play, forward, temperature):
    play.member.needs("model")
    asked = prompts(12)
    replies = play(lambda e: together(e, asked, max_tokens=24, temperature=temperature))
    forward.load(weights_of(0))
    for prompt, reply in zip(asked, replies, strict=True):
        want = forward.logprobs(prompt, reply.token_ids, temperature=temperature)
        assert reply.logprobs == pytest.approx(want, abs=EXACT)
        assert reply.support == []


def test_tokens_follow_the_distribution_that_is_reported(play, forward):
    play.member.needs("model")
    replies = play(lambda e: together(e, [PROMPT] * 300, max_tokens=1, temperature=2.0))
    forward.load(weights_of(0))
    chances = (forward.logits(PROMPT, [0])[0] / 2.0).softmax(-1).numpy()
    counts = np.bincount([reply.token_ids[0] for reply in replies], minlength=VOCAB)
    likely = chances > 0.02
    spread = np.sqrt(300 * chances[likely] * (1 - chances[likely]))
    # Servers draw without a seed, and a count of six has a long tail: 5 deviations were too few.
    assert (np.abs(counts[likely] - 300 * chances[likely]) < 6 * spread).all()


def test_greedy_takes_the_most_likely_and_reports_it_at_temperature_one(play, forward):
    play.member.needs("model")
    asked = prompts(4)
    replies = play(lambda engine: together(engine, asked, max_tokens=12, temperature=0))
    forward.load(weights_of(0))
    for prompt, reply in zip(asked, replies, strict=True):
        logits = forward.logits(prompt, reply.token_ids)
        chosen = logits.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        assert (logits.max(-1).values - chosen).max() < EXACT
        want = forward.logprobs(prompt, reply.token_ids)
        assert reply.logprobs == pytest.approx(want, abs=EXACT)


CUTS = [{"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 12, "top_p": 0.8}]


@cases("cut", CUTS)
def test_a_truncated_distribution_is_renormalised_and_its_support_told(play, forward, cut):
    play.member.needs("model", "support")
    asked = prompts(4)
    replies = play(lambda e: together(e, asked, max_tokens=12, temperature=0.9, **cut))
    forward.load(weights_of(0))
    judged, nested = 0, play.member.can("cuts")
    for prompt, reply in zip(asked, replies, strict=True):
        rows = (forward.logits(prompt, reply.token_ids) / 0.9).softmax(-1)
        assert len(reply.support) == len(reply.token_ids)
        for token, logprob, row, support in zip(
            reply.token_ids, reply.logprobs, rows, reply.support, strict=True
        ):
            if on_the_edge(row.tolist(), nested=nested, **cut):
                continue
            judged += 1
            kept = kept_of(row.tolist(), nested=nested, **cut)
            assert logprob == pytest.approx(math.log(kept[token] / sum(kept.values())), abs=EXACT)
            assert sorted(support) == sorted(kept)
    assert judged >= 40  # of 48


def test_a_stop_token_ends_the_reply_and_stays_in_it(play):
    play.member.needs("stops")

    async def scenario(engine):
        free = joined(await collect(engine, temperature=0, max_tokens=20))
        stop = free.token_ids[5]
        asked = {"temperature": 0, "max_tokens": 20, "stop_token_ids": (stop,)}
        return free, stop, joined(await collect(engine, name="b", **asked))

    free, stop, stopped = play(scenario)
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)


def test_a_stop_string_may_span_tokens(play):
    play.member.needs("stops")

    async def scenario(engine):
        free = joined(await collect(engine, [80, 33, 210], temperature=0, max_tokens=40))
        text = TOKENIZER.decode(free.token_ids, skip_special_tokens=False)
        middle = next(  # of two characters, where it is found first
            text[i : i + 2]
            for i in range(4, len(text) - 2)
            if text[i : i + 2].isascii() and text.find(text[i : i + 2]) == i
        )
        asked = {"temperature": 0, "max_tokens": 40, "stop": ("\0no", middle)}
        return free, middle, joined(await collect(engine, [80, 33, 210], name="b", **asked))

    free, stop, stopped = play(scenario)
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    text = TOKENIZER.decode(stopped.token_ids, skip_special_tokens=False)
    before = TOKENIZER.decode(stopped.token_ids[:-1], skip_special_tokens=False)
    assert stop in text
    assert stop not in before


def test_a_prompt_without_room_is_a_context_length_error(play):
    play.member.needs("model")

    async def scenario(engine):
        assert (await engine.info()).max_model_len == LIMIT
        for length in (LIMIT, 2 * LIMIT):
            with pytest.raises(ContextLengthError, match=str(LIMIT)):
                await collect(engine, [5] * length)
        return await collect(engine, max_tokens=1)

    assert joined(play(scenario)).finish_reason == "length"


@cases("left", [1, 3])
def test_the_context_fills_with_length(play, forward, left):
    play.member.needs("model", "context")
    prompt = [5] * (LIMIT - left)
    reply = joined(play(lambda engine: collect(engine, prompt, max_tokens=9)))
    assert (len(reply.token_ids), reply.finish_reason) == (left, "length")
    forward.load(weights_of(0))
    want = forward.logprobs(prompt, reply.token_ids)
    assert reply.logprobs == pytest.approx(want, abs=EXACT)


NO_TOKENS = {
    "beyond": ([VOCAB], {}),
    "far beyond": ([10**6], {}),
    "negative": ([5, -1], {}),
    "too large for a number": ([2**70], {}),
    "empty": ([], {}),
    "a stop beyond": ([5], {"stop_token_ids": (VOCAB,)}),
}


def test_ids_that_are_no_tokens_are_refused_and_the_engine_lives(play, subtests):
    play.member.needs("refusals")
    scripted = not play.member.can("model")

    async def scenario(engine):
        for name, (ids, sampling) in NO_TOKENS.items():
            if scripted and (not ids or sampling):
                continue
            with subtests.test(name):
                with pytest.raises(EngineError):
                    await collect(engine, ids, **sampling)
                assert joined(await collect(engine)).finish_reason == "length"

    play(scenario)


BODIES = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b"null",
    b"[" * 100_000,
    b'{"token_ids": [1.5], "input_ids": [1.5]}',
    b'{"token_ids": "123", "input_ids": 123}',
    b'{"token_ids": [5], "input_ids": [5], "sampling_params": 7}',
    b'{"token_ids": [5], "input_ids": [5], "sampling_params": {"temperature": "hot"}}',
    b'{"token_ids": [5], "input_ids": [5], "sampling_params": {"top_p": 1.5}}',
]


def test_a_malformed_body_is_refused_and_harms_nobody(play, subtests):
    if not play.member.generate_route:
        pytest.skip(f"{play.member.name}: not over HTTP")

    async def scenario(engine):
        url = engine.url + play.member.generate_route
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for body in BODIES:
                with subtests.test(str(body[:60])):
                    async with session.post(url, data=body) as response:
                        assert 400 <= response.status < 500, await response.text()
                    assert joined(await collect(engine)).finish_reason == "length"

    play(scenario)


def test_a_server_that_is_gone_is_an_engine_error_that_names_it(play):
    if not play.member.generate_route:
        pytest.skip(f"{play.member.name}: not over HTTP")

    async def scenario(engine):
        there, gone = engine.url, f"http://127.0.0.1:{free_port()}"
        await engine.move(gone)
        for call in (lambda: collect(engine), engine.info, engine.resume, engine.counters):
            with pytest.raises(EngineError, match=gone):
                await call()
        await engine.move(there)
        return await collect(engine)

    assert joined(play(scenario)).finish_reason == "length"


def test_requests_run_side_by_side_each_with_its_own_reply(play, forward):
    asked = [[3 + n] * (1 + n % 7) for n in range(40)]
    replies = play(lambda engine: together(engine, asked, max_tokens=12))
    assert [reply.finish_reason for reply in replies] == ["length"] * 40
    if not play.member.can("model"):
        return
    forward.load(weights_of(0))
    for prompt, reply in zip(asked, replies, strict=True):
        want = forward.logprobs(prompt, reply.token_ids)
        assert reply.logprobs == pytest.approx(want, abs=EXACT)


def test_completions_are_served_to_the_sdk_of_openai(play):
    play.member.needs("completions")

    async def scenario(engine):
        told = joined(await collect(engine, temperature=0, max_tokens=9))
        sdk = openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)
        async with sdk:
            [model] = [model async for model in sdk.models.list()]
            asked = {"model": model.id, "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
            whole = await sdk.completions.create(**asked)
            stream = await sdk.completions.create(**asked, stream=True)
            chunks = [chunk async for chunk in stream]
        return told, whole, "".join(c.text for chunk in chunks for c in chunk.choices)

    told, whole, streamed = play(scenario)
    assert whole.choices[0].text == streamed == TOKENIZER.decode(told.token_ids)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(PROMPT), 9)


def test_requests_and_tokens_are_counted(play):
    play.member.needs("counters")

    async def scenario(engine):
        before = await engine.measures()
        await collect(engine, max_tokens=23)
        async with asyncio.timeout(60):
            after = await engine.measures()
            while after["running"] or after["tokens"] < before["tokens"] + 23:
                await asyncio.sleep(0.1)
                after = await engine.measures()
        return before, after

    before, after = play(scenario)
    assert after["tokens"] - before["tokens"] == 23
    assert after["prompts"] - before["prompts"] == len(PROMPT)
    assert (after["running"], after["waiting"]) == (0, 0)


# ------------------------------------------------------------------ grammars
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"enum": [1, 22, 333]}, "why": {"type": "string", "maxLength": 9}},
    "required": ["sum", "why"],
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


def _written(chat, form):
    return readers_of(chat, GatewayConfig())[1].of(form, "assistant\n")


async def _held(engine, chat, grammar, **sampling):
    prompt = chat.prompt([{"role": "user", "content": "What is 3*4?"}], [TOOL])
    asked = {"max_tokens": 200, "stop_token_ids": chat.stop_token_ids, "grammar": grammar}
    return prompt, joined(await collect(engine, prompt, **asked, **sampling))


def test_replies_are_what_they_are_held_to(play, chat):
    play.member.needs("grammars")
    forms = [ReplyForm(SCHEMA), *(ReplyForm(schema, [TOOL], True) for schema in (None, SCHEMA))]
    written = [_written(chat, form) for form in forms]

    async def scenario(engine):
        return [
            (await _held(engine, chat, grammar, name=f"{n}-{index}", temperature=2.0))[1]
            for index, grammar in enumerate(written)
            for n in range(4)
        ]

    replies = play(scenario)
    assert [reply.finish_reason for reply in replies] == ["stop"] * 12
    for index, reply in enumerate(replies):
        text = chat.text(reply.token_ids[:-1])
        parser = readers_of(chat, GatewayConfig())[0]([TOOL], "assistant\n")
        [said] = parser.feed(text) + parser.finish() if index >= 4 else [text]
        called = isinstance(said, ToolCall)
        assert called if 4 <= index < 8 else called or index < 4 or said == text
        jsonschema.validate(json.loads(said.arguments if called else said), SCHEMA)
        assert reply.logprobs[-1] == pytest.approx(0.0, abs=1e-5)  # only the end can follow


@cases("temperature", [1.0, 0.5])
def test_log_probs_are_of_what_a_grammar_leaves(play, chat, forward, temperature):
    play.member.needs("grammars")
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}}
    grammar = _written(chat, ReplyForm({**numbers, "minItems": 3, "maxItems": 3}))
    prompt, reply = play(lambda e: _held(e, chat, grammar, temperature=temperature))
    forward.load(weights_of(0))
    text = (BUNDLED / "tokenizer.json").read_text
    constraint = GrammarCompiler(text, vocab_size=VOCAB, eos_ids=[2]).begin(grammar)
    rows = forward.logits(list(prompt), reply.token_ids) / temperature
    choices = 0
    for token, logprob, row in zip(reply.token_ids, reply.logprobs, rows, strict=True):
        barred = torch.from_numpy(~constraint.allowed())
        choices += int((~barred).sum() > 1)
        left = row.masked_fill(barred, -torch.inf).log_softmax(-1)
        assert logprob == pytest.approx(left[token].item(), abs=2 * EXACT)
        constraint.accept(token)
    assert choices >= 6  # two digits of three numbers


BAD_GRAMMARS = {"schema": ReplyForm({"type": "nonsense"}), "no grammar": None}


@cases("name", BAD_GRAMMARS)
def test_a_grammar_that_is_none_is_refused_and_the_engine_lives(play, chat, name):
    play.member.needs("grammars")
    form = BAD_GRAMMARS[name]
    bad = "no grammar at all" if form is None else _written(chat, form)

    async def scenario(engine):
        with pytest.raises(EngineError, match=r"nonsense|grammar"):
            await _held(engine, chat, bad)
        return await collect(engine, name="after")

    assert joined(play(scenario)).finish_reason == "length"
