"""Weight updates under way, with other decoders than that of the suite in tests/contracts."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch
from arl_embedded.admission import HttpError
from arl_embedded.journal import read_journal
from arl_embedded.module_decoder import cache_argument
from transformers import DynamicCache

from agentgym_rl.core import SamplingParams, WeightsError, base_checksum
from agentgym_rl.weights import read_base, write_version
from agentgym_rl.weights.adapter import merged, named

TOLERANCE = 1e-4
LONG = SamplingParams(max_tokens=150, temperature=1.0, stop_token_ids=())
PROMPTS = [[5, 9, 40, 77], [300] * 20, list(range(3, 48)), [11]]


async def _all(client, *, started, sampling=LONG):
    """Every prompt to its end; `started` is set once each has some tokens."""
    going = []

    async def one(number, prompt):
        parts = []
        async for delta in client.generate(
            prompt, sampling, request_id=f"r{number}", session_id="s", stream=True
        ):
            parts.append(delta)
            if len(parts) == 3:
                going.append(number)
                if len(going) == len(PROMPTS):
                    started.set()
        return parts

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(one(n, prompt)) for n, prompt in enumerate(PROMPTS)]
    return [job.result() for job in jobs]


def _whole(parts):
    ids = [t for part in parts for t in part.token_ids]
    logprobs = [x for part in parts for x in part.logprobs]
    versions = [v for part in parts for v in part.versions]
    assert len(ids) == len(logprobs) == len(versions)
    return ids, logprobs, versions


@asynccontextmanager
async def _updated_midway(served, folder, path, *, interrupt, **options):
    """Outputs of all prompts around a swap; staged before, so that it finds them under way."""
    async with served(folder, ends=False, **options) as (client, engine):
        engine.start_update()
        await engine.stage(path)
        started = asyncio.Event()

        async def swap():
            async with asyncio.timeout(60):
                await started.wait()
            if interrupt is not None:
                await client.pause(interrupt=interrupt)
            await engine.finish_update("0.1")
            if interrupt is not None:
                await client.resume()

        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_all(client, started=started))
            tasks.create_task(swap())
        yield client, [_whole(parts) for parts in job.result()]


def _recompute_audit(plain_logprobs, old, new, prompt, ids, logprobs, boundary):
    """Worst difference from plain forwards: `old` before `boundary`, `new` from it on."""
    want = plain_logprobs(old, prompt, ids)[:boundary] + plain_logprobs(new, prompt, ids)[boundary:]
    return max(abs(a - b) for a, b in zip(logprobs, want, strict=True))


def test_spans_are_exact_when_kv_is_recomputed(
    model_dir, served, plain_logprobs, perturbed, load_plain, load_changed, tmp_path
):
    folder = model_dir("gpt2")
    tensors = perturbed(folder, 7)
    path = write_version(tmp_path, 1, tensors)
    old, new = load_plain(folder), load_changed(folder, tensors)

    async def scenario():
        async with _updated_midway(served, folder, path, interrupt="recompute") as (_, outputs):
            return outputs

    for prompt, (ids, logprobs, versions) in zip(PROMPTS, asyncio.run(scenario()), strict=True):
        boundary = versions.index(1)
        assert versions == [0] * boundary + [1] * (len(ids) - boundary)

        def audit(at, prompt=prompt, ids=ids, logprobs=logprobs):
            return _recompute_audit(plain_logprobs, old, new, prompt, ids, logprobs, at)

        assert audit(boundary) <= TOLERANCE
        assert audit(boundary - 1) > 10 * TOLERANCE  # a label one token off would be seen
        assert audit(boundary + 1) > 10 * TOLERANCE


def test_kept_kv_equals_a_replay_on_mixed_kv(
    model_dir, served, perturbed, load_plain, load_changed, tmp_path
):
    folder = model_dir("gpt2")
    tensors = perturbed(folder, 8)
    path = write_version(tmp_path, 1, tensors)
    old, new = load_plain(folder), load_changed(folder, tensors)

    async def scenario():
        async with _updated_midway(served, folder, path, interrupt="keep") as (_, outputs):
            return outputs

    for prompt, (ids, logprobs, versions) in zip(PROMPTS, asyncio.run(scenario()), strict=True):
        want = _replay(old, new, prompt, ids, versions.index(1))
        assert max(abs(a - b) for a, b in zip(logprobs, want, strict=True)) <= TOLERANCE


def _replay(old, new, prompt, ids, boundary):
    """Log-probs with the keys of everything before output token `boundary` - 1 left old."""
    tokens = torch.tensor([[*prompt, *ids]])
    cut = len(prompt) + boundary - 1  # the first token the new weights were fed
    with torch.inference_mode():
        kept = {cache_argument(old): DynamicCache()}
        first, second = old(tokens[:, :cut], **kept), new(tokens[:, cut:], **kept)
    logits = torch.cat([first.logits, second.logits], dim=1)[0, len(prompt) - 1 : -1]
    scores = torch.log_softmax(logits, -1)
    return scores.gather(1, torch.tensor(ids)[:, None]).squeeze(1).tolist()


def test_an_update_without_a_pause_swaps_between_two_steps(
    model_dir, served, perturbed, load_plain, load_changed, tmp_path
):
    folder = model_dir("qwen3")
    tensors = perturbed(folder, 9)
    path = write_version(tmp_path, 1, tensors)
    old, new = load_plain(folder), load_changed(folder, tensors)

    async def scenario():
        async with _updated_midway(served, folder, path, interrupt=None) as (_, out):
            return out

    for prompt, (ids, logprobs, versions) in zip(PROMPTS, asyncio.run(scenario()), strict=True):
        assert sorted(versions) == versions
        want = _replay(old, new, prompt, ids, versions.index(1))
        assert max(abs(a - b) for a, b in zip(logprobs, want, strict=True)) <= TOLERANCE


def test_the_journal_says_what_was_fed_and_sampled(model_dir, served, perturbed, tmp_path):
    folder = model_dir("qwen3")
    path = write_version(tmp_path, 1, perturbed(folder, 12))
    book = tmp_path / "journal.jsonl"

    async def scenario():
        async with _updated_midway(served, folder, path, interrupt="recompute", journal=book) as (
            _,
            out,
        ):
            return out

    outputs = asyncio.run(scenario())
    lines = {line.request_id: line for line in read_journal(book)}
    for number, (ids, logprobs, versions) in enumerate(outputs):
        line = lines[f"r{number}"]
        boundary = versions.index(1)
        assert (line.prompt_token_ids, line.token_ids) == (PROMPTS[number], ids)
        assert line.logprobs == logprobs
        assert [(s.version, s.start, s.end) for s in line.weight_versions] == [
            ("0.0", 0, boundary),
            ("0.1", boundary, len(ids)),
        ]
        assert line.recomputed_at == [boundary]
        assert line.finish_reason == "length"


def test_float32_weights_into_a_bfloat16_engine(model_dir, served, perturbed, tmp_path):
    folder = model_dir("qwen3")
    path = write_version(tmp_path, 1, perturbed(folder, 13))

    async def scenario():
        async with served(folder, dtype="bfloat16") as (client, _):
            await client.update_weights(str(path), version=1)
            return (await client.info()).version

    assert asyncio.run(scenario()) == 1


def adapter_of(folder, seed, *, base=None):
    """A LoRA adapter of rank 4 on every linear layer of the folder's blocks."""
    torch.manual_seed(seed)
    weights = {name: t for name, t in read_base(folder).items() if "_proj" in name}
    pairs = {
        name.removesuffix(".weight"): (torch.randn(4, t.shape[1]), 0.1 * torch.randn(len(t), 4))
        for name, t in weights.items()
    }
    return named(pairs, scaling=0.5, base=base_checksum(folder) if base is None else base)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_adapters_are_merged_into_the_base_whatever_was_served(
    model_dir, served, plain_logprobs, load_plain, load_changed, tmp_path, kind
):
    folder = model_dir(kind)
    first, second = (adapter_of(folder, seed) for seed in (1, 2))
    path = write_version(tmp_path, 1, first)

    async def play():
        async with _updated_midway(served, folder, path, interrupt="recompute") as (
            client,
            outputs,
        ):
            await client.update_weights(str(write_version(tmp_path, 2, second)), version=2)
            return outputs, await _all(client, started=asyncio.Event())

    outputs, after = asyncio.run(play())
    old, new = load_plain(folder), load_changed(folder, merged(first, folder))
    for asked, (ids, logprobs, versions) in zip(PROMPTS, outputs, strict=True):
        worst = _recompute_audit(plain_logprobs, old, new, asked, ids, logprobs, versions.index(1))
        assert worst < TOLERANCE
    newest = load_changed(folder, merged(second, folder))
    for asked, parts in zip(PROMPTS, after, strict=True):
        ids, logprobs, versions = _whole(parts)
        assert set(versions) == {2}
        assert _recompute_audit(plain_logprobs, new, newest, asked, ids, logprobs, 0) < TOLERANCE


def test_an_adapter_of_other_weights_is_refused(model_dir, served, tmp_path):
    folder = model_dir("qwen3")
    path = write_version(tmp_path, 1, adapter_of(folder, 1, base=7))

    async def play():
        async with served(folder) as (_, engine):
            engine.start_update()
            with pytest.raises(WeightsError, match=r"trained on other weights \(crc32 00000007\)"):
                await engine.stage(path)

    asyncio.run(play())


def _frozen_but(changed: str, tensors, other):
    return {name: other[name] if changed in name else tensors[name] for name in tensors}


@pytest.mark.parametrize("fused", ["auto", "never"])
@pytest.mark.parametrize("changed", ["layers.1.mlp.up", "norm.weight", "embed_tokens", "nothing"])
def test_what_did_not_change_is_not_read_and_serves_the_same(
    model_dir, served, perturbed, tmp_path, fused, changed
):
    """Bit for bit what the whole version serves."""
    folder = model_dir("qwen3")
    first = perturbed(folder, 3)
    second = _frozen_but(changed, first, perturbed(folder, 4))
    paths = [write_version(tmp_path, 1, first, sequence="s")]
    paths.append(write_version(tmp_path, 2, second, sequence="s", previous=paths[0]))
    asked: list[str] = []

    async def outputs(updates):
        # Else the requests of a batch, which depend on the moment, decide the last bit.
        async with served(folder, fused=fused, deterministic=True) as (client, engine):
            stage = engine.model.decoder.stage

            def staged(tensors, same=()):
                asked.append(sorted(tensors.keys() - same))
                return stage(tensors, same)

            engine.model.decoder.stage = staged
            for version, path in updates:
                await client.update_weights(str(path), version=version)
            sampling = SamplingParams(max_tokens=20, temperature=1.0, stop_token_ids=())
            parts = await _all(client, started=asyncio.Event(), sampling=sampling)
            return [_whole(part) for part in parts]

    both = asyncio.run(outputs(list(enumerate(paths, start=1))))
    whole = asyncio.run(outputs([(2, paths[1])]))
    assert both == whole
    assert len(asked[1]) < len(asked[0]) == len(asked[2])


def test_changes_of_a_version_that_was_dropped_are_refused(model_dir, served, perturbed, tmp_path):
    """A sleep of level 2 comes between staging and swap; a version read after it is whole."""
    folder = model_dir("qwen3")
    first = perturbed(folder, 3)
    one = write_version(tmp_path, 1, first, sequence="s")
    two = write_version(tmp_path, 2, first, sequence="s", previous=one)

    async def scenario():
        async with served(folder) as (client, engine):
            await client.update_weights(str(one), version=1)
            engine.start_update()
            await engine.stage(two)
            await client.sleep(level=2)
            await client.wake_up("weights")
            with pytest.raises(HttpError, match="changes of others"):
                await engine.finish_update("0.2")
            await client.update_weights(str(two), version=2)
            await client.wake_up("kv_cache")
            parts = await _all(client, started=asyncio.Event())
            return [_whole(part) for part in parts]

    assert {v for _, _, versions in asyncio.run(scenario()) for v in versions} == {2}
