"""No token is computed twice under the same weights, and none is reused under others."""

import asyncio
import random

import pytest
from arl_embedded import model as loading
from arl_embedded.module_decoder import CachedDecoder
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.core import PAUSE_PATHS, SamplingParams
from agentgym_rl.weights import write_version
from tests.kit.cases import cases

TOLERANCE = 1e-5
PROMPT = random.Random(1).choices(range(3, 640), k=60)
REPLY = SamplingParams(max_tokens=8)
LONG = SamplingParams(max_tokens=190)


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(60), served(folder, ends=False, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _ask(client, name, prompt, sampling=REPLY, salt=""):
    """(prompt, output, log-probs, versions) of a request."""
    names = {"request_id": name, "session_id": name, "cache_salt": salt}
    async for delta in client.generate(prompt, sampling, **names):
        return list(prompt), list(delta.token_ids), list(delta.logprobs), list(delta.versions)


async def _together(client, engine, prompts, sampling=REPLY, salts=None):
    """All prompts in one admission: they arrive while the engine is paused."""
    await client.pause(interrupt="keep")
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(_ask(client, f"t{n}", prompt, sampling, (salts or {}).get(n, "")))
            for n, prompt in enumerate(prompts)
        ]
        await _until(lambda: engine.loop.counters.waiting == len(prompts))
        await client.resume()
    return [job.result() for job in jobs]


async def _until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the decode thread sets no event)
            await asyncio.sleep(0.002)


def _worst(plain_logprobs, model, turns):
    return max(
        abs(got - want)
        for prompt, output, logprobs, *_ in turns
        for got, want in zip(logprobs, plain_logprobs(model, prompt, output), strict=True)
    )


@cases("kind", ["qwen3", "llama", "gpt2", "neox"])
@cases("apart", [False, True])
def test_a_group_computes_its_prompt_once(model_dir, served, plain_logprobs, kind, apart):
    async def scenario(client, engine):
        prompts = [PROMPT] * 8
        first = [await _ask(client, "first", PROMPT)] if apart else []
        turns = await _together(client, engine, prompts[len(first) :])
        counters = engine.loop.counters
        assert counters.prefilled_tokens == len(PROMPT) - 1
        assert counters.prefix_cache_hits == 7 * (len(PROMPT) - 1)
        assert counters.prefix_cache_queries == 8 * (len(PROMPT) - 1)
        return first + turns

    turns = _run(served, model_dir(kind), scenario)
    assert _worst(plain_logprobs, model_dir(kind), turns) <= TOLERANCE


def test_members_that_come_one_after_the_other_share_what_still_runs(model_dir, served):
    async def scenario(client, engine):
        counters = engine.loop.counters
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(_ask(client, f"r{number}", PROMPT, LONG))
                await _until(lambda: counters.running == number + 1)  # noqa: B023
        return counters.prefilled_tokens

    assert _run(served, model_dir("qwen3"), scenario) == len(PROMPT) - 1


async def _episode(client, name, turns, new_tokens):
    """Turns that each continue the last one with `new_tokens` of the environment."""
    draw, prompt, found = random.Random(name), list(PROMPT), []
    for number in range(turns):
        turn = await _ask(client, f"{name}-{number}", prompt)
        found.append(turn)
        prompt = prompt + turn[1] + [draw.randrange(3, 640) for _ in range(new_tokens)]
    return found


@cases("kind", ["qwen3", "gpt2"])
@cases("fused", ["auto", "never"])
def test_ten_turns_compute_each_token_once(model_dir, served, plain_logprobs, kind, fused):
    async def scenario(client, engine):
        turns = await _episode(client, "a", 10, 5)
        return turns, engine.loop.counters.prefilled_tokens

    turns, prefilled = _run(served, model_dir(kind), scenario, fused=fused)
    distinct = len(turns[-1][0])
    assert prefilled <= 1.05 * distinct
    # Exactly: a decode step computes the last token of a prompt, and all sampled ones but the last.
    assert prefilled == len(PROMPT) - 1 + 9 * (1 + 5 - 1)
    assert _worst(plain_logprobs, model_dir(kind), turns) <= TOLERANCE


@cases("options", [{"dtype": "bfloat16"}, {"max_num_seqs": 1}, {"max_model_len": 128}])
def test_engines_of_other_sizes_and_dtypes_reuse_too(model_dir, served, plain_logprobs, options):
    async def scenario(client, engine):
        turns = await _episode(client, "a", 4, 5)
        assert engine.loop.counters.prefilled_tokens == len(PROMPT) - 1 + 3 * (1 + 5 - 1)
        return turns + await _together(client, engine, [turns[-1][0]] * 3)

    turns = _run(served, model_dir("qwen3"), scenario, **options)
    allowed = 0.3 if "dtype" in options else TOLERANCE
    assert _worst(plain_logprobs, model_dir("qwen3"), turns) <= allowed


def test_episodes_of_a_group_side_by_side(model_dir, served, plain_logprobs):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_episode(client, f"e{n}", 6, 3 + n)) for n in range(6)]
        return [turn for job in jobs for turn in job.result()], engine.loop.counters

    turns, counters = _run(served, model_dir("qwen3"), scenario, max_num_seqs=4)
    grown = sum(5 * (3 + n) for n in range(6))
    assert counters.prefilled_tokens <= len(PROMPT) - 1 + grown
    assert _worst(plain_logprobs, model_dir("qwen3"), turns) <= TOLERANCE


def test_branches_and_rewritten_histories_share_their_beginning(model_dir, served, plain_logprobs):
    prompts = [
        [*PROMPT, *range(100, 130)],
        [*PROMPT, *range(200, 230)],  # a branch
        [*PROMPT[:40], *range(300, 340)],  # a rewritten history
        PROMPT[:50],  # a beginning
        [*PROMPT[:40], *range(300, 320), *range(400, 410)],  # a branch of the rewritten one
        [7, *PROMPT],  # nothing in common
    ]
    new = [89, 30 - 1, 40 - 1, 0, 10 - 1, 60]

    async def scenario(client, engine):
        turns, computed = [], []
        for number, prompt in enumerate(prompts):
            before = engine.loop.counters.prefilled_tokens
            turns.append(await _ask(client, f"r{number}", prompt))
            computed.append(engine.loop.counters.prefilled_tokens - before)
        return (
            turns,
            computed,
            await _together(client, engine, [[*prompt, 9] for prompt in prompts]),
        )

    turns, computed, again = _run(served, model_dir("qwen3"), scenario)
    assert computed == new
    assert _worst(plain_logprobs, model_dir("qwen3"), turns + again) <= TOLERANCE


def test_salts_are_kept_apart(model_dir, served):
    async def scenario(client, engine):
        await _together(client, engine, [PROMPT] * 4, salts={0: "a", 1: "b", 2: "a"})
        await _ask(client, "later", PROMPT, salt="c")
        return engine.loop.counters.prefilled_tokens

    assert _run(served, model_dir("qwen3"), scenario) == 4 * (len(PROMPT) - 1)  # a, b, none, c


def _update(model_dir, served, perturbed, tmp_path, interrupt, **options):
    """Turns that begin as others did before an update, one of them in flight when it came."""
    folder = model_dir("qwen3")
    path = write_version(tmp_path, 1, perturbed(folder, 3))

    async def scenario(client, engine):
        await _ask(client, "before", PROMPT)
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_ask(client, "running", PROMPT, LONG))
            await _until(lambda: engine.loop.counters.running == 1)
            await _swap(client, engine, path, "0.1", interrupt)
            late = tasks.create_task(_ask(client, "late", [*PROMPT, 5]))
            await client.resume()
            await late
        after = await _ask(client, "after", [*PROMPT, 6])
        following = await _ask(client, "following", [*job.result()[0], *job.result()[1], 7])
        turns = [late.result(), after, following]
        assert {version for *_, versions in turns for version in versions} == {1}
        return turns

    return _run(served, folder, scenario, **options)


@cases("interrupt", sorted(PAUSE_PATHS))
def test_nothing_of_older_weights_is_reused(
    model_dir, served, perturbed, load_changed, plain_logprobs, tmp_path, interrupt
):
    turns = _update(model_dir, served, perturbed, tmp_path, interrupt)
    folder = model_dir("qwen3")
    model = load_changed(folder, perturbed(folder, 3))
    assert _worst(plain_logprobs, model, turns) <= TOLERANCE


def test_a_cache_that_survives_an_update_is_noticed(
    model_dir, served, perturbed, load_changed, plain_logprobs, tmp_path
):
    """The same as above fails with the planted fault: `prefix_cache = "shared"`."""
    turns = _update(model_dir, served, perturbed, tmp_path, "keep", prefix_cache="shared")
    folder = model_dir("qwen3")
    model = load_changed(folder, perturbed(folder, 3))
    assert _worst(plain_logprobs, model, turns) > 1e-2


@pytest.mark.slow
@cases("room", [1.0, 2e-4])
@cases("interrupt", ["recompute", "abort"])
def test_branching_conversations_through_updates_are_exact(
    model_dir,
    served,
    perturbed,
    load_plain,
    load_changed,
    plain_logprobs,
    tmp_path,
    interrupt,
    room,
):
    """As in an audit: every token has the log-prob of the version that sampled it."""
    folder, updates = model_dir("qwen3"), 4
    paths = [write_version(tmp_path, n, perturbed(folder, n)) for n in range(1, updates + 1)]

    async def converse(client, name):
        draw, prompts, turns = random.Random(name), [PROMPT, PROMPT[:30]], []
        for number in range(12):
            base = draw.choice(prompts)
            prompt = base[: draw.randint(20, len(base))]
            prompt = [*prompt, *draw.choices(range(3, 640), k=draw.randint(0, 4))][:200]
            turns.append(
                await _ask(client, f"{name}-{number}", prompt, SamplingParams(max_tokens=12))
            )
            prompts.append(prompt + turns[-1][1])
        return turns

    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(converse(client, f"c{n}")) for n in range(5)]
            for number, path in enumerate(paths, start=1):
                steps = engine.loop.counters.steps
                await _until(lambda: engine.loop.counters.steps > steps + 20)  # noqa: B023
                await _swap(client, engine, path, f"0.{number}", interrupt)
                await client.resume()
        assert 0 < engine._prefixes.num_bytes <= room * 2**30
        assert engine.loop.counters.prefix_cache_hits > 0
        return [turn for job in jobs for turn in job.result()]

    turns = _run(served, folder, scenario, max_num_seqs=3, prefix_cache_gib=room)
    models = [load_plain(folder)]
    models += [load_changed(folder, perturbed(folder, n)) for n in range(1, updates + 1)]
    assert {version for *_, versions in turns for version in versions} >= set(range(updates))
    for prompt, output, logprobs, versions in turns:
        want = [plain_logprobs(model, prompt, output) for model in models] if output else []
        for at, (got, version) in enumerate(zip(logprobs, versions, strict=True)):
            assert got == pytest.approx(want[version][at], abs=TOLERANCE)


async def _swap(client, engine, path, label, interrupt):
    """Serve other weights, as a publication does, and stay paused."""
    engine.start_update()
    await engine.stage(path)
    await client.pause(interrupt=interrupt)
    await engine.finish_update(label)


def test_a_rebuild_after_an_update_shares_the_prompt_of_a_group(
    model_dir, served, perturbed, tmp_path
):
    path = write_version(tmp_path, 1, perturbed(model_dir("qwen3"), 3))

    async def scenario(client, engine):
        counters = engine.loop.counters
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(
                    _ask(client, f"r{number}", PROMPT, SamplingParams(max_tokens=150))
                )
            await _until(lambda: counters.running == 8 and counters.steps > 20)
            await client.pause(interrupt="recompute")
            before, sampled = counters.prefilled_tokens, counters.generated_tokens
            await client.update_weights(str(path), version=1)
            await client.resume()
            # Each row samples again once all are rebuilt.
            await _until(lambda: counters.generated_tokens >= sampled + 8)
            return counters.prefilled_tokens - before, sampled

    rebuilt, sampled = _run(served, model_dir("qwen3"), scenario, max_num_seqs=8)
    # The prompt once, and of each row all sampled tokens but the last.
    assert rebuilt == len(PROMPT) + sampled - 8


@pytest.mark.parametrize("path", ["/pause?mode=keep", "/pause?mode=wait", "/sleep?level=1"])
def test_a_cleared_cache_is_empty(model_dir, served, call, path):
    async def scenario(client, engine):
        await _ask(client, "a", PROMPT)
        assert "arl_engine_prefix_cache_bytes 0\n" not in (await call(client.url + "/metrics"))[1]
        await call(client.url + path, "POST")
        assert "arl_engine_prefix_cache_bytes 0\n" in (await call(client.url + "/metrics"))[1]
        await client.wake_up()
        await client.resume()
        await _ask(client, "b", PROMPT)
        return engine.loop.counters.prefix_cache_hits

    assert _run(served, model_dir("qwen3"), scenario) == 0


@cases("options", [{"deterministic": True}, {"prefix_cache": "off"}])
def test_where_nothing_is_reused(model_dir, served, options):
    """Deterministic engines promise the same bits whatever they computed before."""

    async def scenario(client, engine):
        sampling = SamplingParams(max_tokens=20, seed=5)
        turns = [await _ask(client, f"r{n}", PROMPT, sampling) for n in range(3)]
        return turns, engine.loop.counters

    turns, counters = _run(served, model_dir("qwen3"), scenario, **options)
    assert counters.prefix_cache_queries == counters.prefix_cache_hits == 0
    assert counters.prefilled_tokens == 3 * (len(PROMPT) - 1)
    assert turns[0] == turns[1] == turns[2]


def test_memory_is_bounded_and_the_least_recently_used_goes_first(model_dir, served):
    def prompt(number):
        return random.Random(number).choices(range(3, 640), k=100)

    async def scenario(client, engine):
        per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, dim, float32
        await _ask(client, "kept", prompt(-1))
        for number in range(6):
            await _ask(client, f"r{number}", prompt(number))
            assert await _hits(client, engine, "kept", prompt(-1)) == 99
            assert 0 < engine._prefixes.num_bytes <= 350 * per_token
        return [await _hits(client, engine, f"r{n}", prompt(n)) for n in (0, 5)]

    gib = 350 * 256 * 2 / 2**30
    found = _run(served, model_dir("qwen3"), scenario, prefix_cache_gib=gib)
    assert found == [0, 99]


async def _hits(client, engine, name, prompt):
    before = engine.loop.counters.prefix_cache_hits
    await _ask(client, name, prompt)
    return engine.loop.counters.prefix_cache_hits - before


def test_a_decoder_without_a_cache_reuses_nothing(model_dir, served, plain_logprobs):
    async def scenario(client, engine):
        assert engine.model.decoder.name == "uncached"
        turns = await _episode(client, "a", 3, 5)
        assert engine.loop.counters.prefix_cache_queries == 0
        return turns

    turns = _run(served, model_dir("mistral"), scenario)
    assert _worst(plain_logprobs, model_dir("mistral"), turns) <= TOLERANCE


class _Summing(CachedDecoder):
    """A decoder whose cache cannot be cut: it also has a state, which copies do not carry."""

    state = 0.0

    def prefill(self, first, rows, starts=None):
        super().prefill(first, rows, starts)
        self.state = 0.0 if starts is None else 1.0

    def decode(self, tokens, positions, segments):
        return super().decode(tokens, positions, segments) + self.state * positions[:, None]


def test_a_cache_that_cannot_be_cut_is_found_out_and_not_reused(
    model_dir, load_plain, monkeypatch, caplog
):
    monkeypatch.setattr(loading, "CachedDecoder", _Summing)
    config = EmbeddedEngineConfig(device="cpu", fused="never", max_model_len=64)
    decoder = loading.choose_decoder(load_plain(model_dir("qwen3")), config, 64)
    assert (decoder.name, decoder.reusable) == ("cached", None)
    assert "every prompt is computed completely" in caplog.text
