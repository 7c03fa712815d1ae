"""Replies of the embedded engine that are held to a grammar."""

import asyncio
import json
import shutil

import jsonschema
import pytest
from arl_parsers.lark import Lark
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentgym_rl.core import RequestRefused, SamplingParams
from agentgym_rl.engines import protocol
from agentgym_rl.models.resolve import BUNDLED

PROMPT, END = [5, 6, 7], 2
TOKENIZER = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
LEAVES = st.one_of(
    st.builds(
        lambda low: {"type": "integer", "minimum": low, "maximum": low + 99}, st.integers(-9, 9)
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "maxLength": 3}]),
    st.lists(st.text('ab"\\é\n', max_size=3), min_size=1, max_size=3).map(lambda v: {"enum": v}),
)
NAMES = ["a", "b c", "é"]


def _array(items):
    return st.builds(
        lambda item, most: {"type": "array", "items": item, "maxItems": most},
        items,
        st.integers(0, 2),
    )


def _object(values):
    properties = st.dictionaries(st.sampled_from(NAMES), values, max_size=3)
    return st.builds(
        lambda fields, all: {
            "type": "object",
            "properties": fields,
            "required": list(fields) if all else [],
        },
        properties,
        st.booleans(),
    )


SCHEMAS = st.recursive(LEAVES, lambda inner: _array(inner) | _object(inner), max_leaves=4)


def _grammar(schema):
    lark = Lark({})
    return lark.written(f"{lark.json(schema)} {lark.token(END)}")


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(120), served(folder, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _reply(client, grammar, name="a", **sampling):
    params = SamplingParams(**{"max_tokens": 200, "seed": 3, "grammar": grammar, **sampling})
    call = client.generate(PROMPT, params, request_id=name, session_id=name)
    return [delta async for delta in call][-1]


async def _together(client, grammars, **sampling):
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(_reply(client, grammar, str(index), **{"seed": index, **sampling}))
            for index, grammar in enumerate(grammars)
        ]
    return [task.result() for task in asked]


def _text(reply):
    return TOKENIZER.decode(reply.token_ids[:-1], skip_special_tokens=False)


@pytest.mark.slow
@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@given(
    schemas=st.lists(SCHEMAS, min_size=8, max_size=8), temperature=st.sampled_from([0.0, 1.0, 3.0])
)
def test_replies_that_end_are_valid(model_dir, served, schemas, temperature):
    async def scenario(client, _):
        return await _together(client, map(_grammar, schemas), temperature=temperature)

    for schema, reply in zip(schemas, _run(served, model_dir("qwen3"), scenario), strict=True):
        if reply.finish_reason == "stop":
            assert reply.token_ids[-1] == END
            jsonschema.validate(json.loads(_text(reply)), schema)
        else:
            assert (reply.finish_reason, len(reply.token_ids)) == ("length", 200)


SMALL = {"enum": ["one", "two"]}
"""Under it every reply ends soon."""


def test_other_rows_do_not_notice(model_dir, served):
    async def alone(client, _):
        return await _reply(client, None, "free", max_tokens=30)

    async def beside(client, _):
        async with asyncio.TaskGroup() as tasks:
            held = tasks.create_task(_together(client, [_grammar(SMALL)] * 3))
            free = tasks.create_task(_reply(client, None, "free", max_tokens=30))
        return held.result(), free.result()

    folder = model_dir("qwen3")
    held, free = _run(served, folder, beside)
    assert free.token_ids == _run(served, folder, alone).token_ids
    assert {json.loads(_text(reply)) for reply in held} <= {"one", "two"}


BAD = {
    "type": ({"type": "nonsense"}, "nonsense"),
    "impossible": ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    "unknown": ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies"),
    "nowhere": ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    "itself": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "cannot be followed"),
}


def test_a_schema_that_cannot_be_followed_is_refused_and_the_engine_lives(model_dir, served):
    async def scenario(client, engine):
        for schema, says in BAD.values():
            with pytest.raises(RequestRefused, match=says):
                await _reply(client, _grammar(schema))
        with pytest.raises(RequestRefused, match="cannot be followed"):
            await _reply(client, "no grammar at all")
        return engine.loop.alive, await _reply(client, _grammar(SMALL))

    alive, reply = _run(served, model_dir("qwen3"), scenario)
    assert alive
    assert json.loads(_text(reply)) in ("one", "two")


def test_a_folder_without_a_tokenizer_has_no_grammars(model_dir, served, tmp_path):
    folder = shutil.copytree(model_dir("qwen3"), tmp_path / "bare")
    (folder / "tokenizer.json").unlink()

    async def scenario(client, _):
        with pytest.raises(RequestRefused, match=r"needs tokenizer\.json"):
            await _reply(client, _grammar(SMALL))

    _run(served, folder, scenario)


def test_a_grammar_without_an_end_ends_with_the_sequence(model_dir, served):
    async def scenario(client, _):
        return await _reply(client, 'start: "a"')

    reply = _run(served, model_dir("qwen3"), scenario)
    assert (_text(reply), reply.token_ids[-1], reply.finish_reason) == ("a", END, "stop")


@pytest.mark.parametrize("interrupt", ["keep", "recompute"])
def test_a_pause_does_not_lose_the_place(model_dir, served, interrupt):
    schema = {"type": "array", "items": {"enum": [100, 200]}, "minItems": 30, "maxItems": 30}

    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(_reply(client, _grammar(schema)))
            while engine.loop.counters.generated_tokens < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await client.pause(interrupt=interrupt)
            await client.resume()
        return asked.result()

    jsonschema.validate(json.loads(_text(_run(served, model_dir("qwen3"), scenario))), schema)


@pytest.mark.parametrize(
    "pattern", ["^(.{0,1000}){1000}$", "(.{0,100}){100}", r"[\s\S]{0,5000}z"], ids=range(3)
)
def test_a_grammar_that_grows_too_complex_is_refused_and_hurts_no_other(pattern, model_dir, served):
    schema = {"type": "string", "pattern": pattern}

    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(_reply(client, _grammar(SMALL)))
            with pytest.raises(RequestRefused, match="the grammar cannot be followed any further"):
                await _reply(client, _grammar(schema), name="b", max_tokens=400)
        return other.result(), engine.loop.alive

    reply, alive = _run(served, model_dir("qwen3"), scenario)
    assert alive
    assert json.loads(_text(reply)) in ("one", "two")


def test_the_wire_takes_no_other_form(model_dir, served, call):
    async def scenario(client, _):
        params = {"max_tokens": 5, "structured_outputs": {"json": {"type": "object"}}}
        body = {"token_ids": PROMPT, "sampling_params": params}
        return await call(client.url + protocol.GENERATE, "POST", body)

    status, body = _run(served, model_dir("qwen3"), scenario)
    assert status == 400
    assert "json" in body["error"]["message"]
