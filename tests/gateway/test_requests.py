"""What the endpoint refuses, with which status, and what it accepts."""

import asyncio
import gzip
import json

import numpy as np
import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import token_records
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import Session, SessionSampling
from agentgym_rl.gateway.session.session import SessionTable
from tests.kit.cases import cases


@pytest.fixture
def scene(stage, spell, words):
    return stage(lambda _: spell.canonical(words.ANSWER + words.END))


def _post(scene, key, **fields):
    return asyncio.run(scene.post(key, **fields))


REFUSED = {
    "n": {"n": 129},
    "response_format": {"response_format": {"type": "grammar"}},
    "tool_choice": {"tool_choice": {"type": "web_search"}},
    "logit_bias": {"logit_bias": {"5": 1}},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "functions": {"functions": [{"name": "f"}]},
    "function_call": {"function_call": "auto"},
    "audio": {"audio": {"voice": "x"}},
    "modalities": {"modalities": ["text", "audio"]},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "reasoning_effort": {"reasoning_effort": "loud"},
    "best_of": {"best_of": 3},
    "top_p": {"top_p": 1.1},
    "top_k": {"top_k": 0.5},
    "min_p": {"min_p": "all"},
    "temperature": {"temperature": 3},
    "max_tokens": {"max_tokens": 0},
    "max_completion_tokens": {"max_completion_tokens": "many"},
    "seed": {"seed": 1.5},
    "stop": {"stop": ["a", ""]},
    "stream": {"stream": "yes"},
    "stream_options": {"stream_options": {"include_usage": True}},
    "tools": {"tools": [{"type": "function"}]},
    "messages": {"messages": []},
    "messages[0]": {"messages": [{"role": "wizard", "content": "x"}]},
    "messages[1]": {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 3}]},
    "messages[0].tool_calls": {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
}


@cases("param, fields", REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(scene, words, param, fields):
    answer = _post(scene, scene.open(), **{"messages": words.FIRST, **fields})
    assert answer.status == 400
    assert answer.error["param"] == param
    assert param.partition("[")[0] in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"
    assert scene.engine.journal == []


ACCEPTED = [
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_p": 1},
    {"response_format": {"type": "text"}, "modalities": ["text"], "top_logprobs": 0, "top_k": -1},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "seed": 7, "stop": None},
    {"temperature": None, "max_tokens": None, "stream": False, "functions": None},
]


TOO_BIG = [("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 2**64), ("top_k", 2**31)]


@cases("param, value", TOO_BIG)
def test_numbers_that_no_engine_reads_are_refused_by_name(scene, words, param, value):
    session = scene.open(train=False)
    answer = _post(scene, session, messages=words.FIRST, **{param: value})
    assert (answer.status, answer.error["param"]) == (400, param)
    bound = "at least" if value < 0 else "at most"
    assert f"expected {bound}" in answer.error["message"]
    largest = {param: 2**31 - 1 if param == "top_k" else 2**63 - 1}
    assert _post(scene, session, messages=words.FIRST, **largest).status == 200


def test_strict_is_not_shown_to_the_model(scene, words):
    """Some SDKs add it to each tool; it is no other root either."""
    function = words.CALCULATOR["function"]
    session = scene.open()
    for strict in ({}, {"strict": False}, {"strict": True}):
        tools = [{"type": "function", "function": {**function, **strict}}]
        assert _post(scene, session, messages=words.FIRST, tools=tools).status == 200
    assert len({tuple(entry.prompt) for entry in scene.engine.journal}) == 1
    assert scene.gateway.close_session(session).counters["forks_new_root"] == 0


@cases("fields", ACCEPTED)
def test_what_changes_nothing_is_accepted(scene, words, fields):
    assert _post(scene, scene.open(), messages=words.FIRST, **fields).message["content"]


@cases("body", [b"", b"{", b"[1]", b'{"messages": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_400(scene, body):
    answer = asyncio.run(scene.post(scene.open(), body=body))
    assert answer.status == 400
    assert "JSON" in answer.error["message"]


@cases("packed", ["gzip", "zstd", "GZIP, br"])
@cases("path", ["/v1/chat/completions", "/v1/messages", "/v1/conversations"])
def test_a_compressed_body_is_refused_by_name(stage, packed, path):
    scene = stage([])
    headers = {"content-encoding": packed}
    answer = asyncio.run(scene.post(scene.open(), gzip.compress(b"{}"), path=path, headers=headers))
    assert (answer.status, packed.lower() in answer.error["message"]) == (415, True)


def test_half_a_character_is_named(stage):
    """JavaScript cuts texts by UTF-16, and writes such halves."""
    scene = stage([])
    answer = asyncio.run(scene.post(scene.open(), b'{"messages": "cut \\ud83d"}'))
    assert (answer.status, "\\ud83d is half a character" in answer.error["message"]) == (400, True)


def test_a_body_over_the_limit_is_413(stage):
    scene = stage([], config=GatewayConfig(max_body_bytes=1000))
    answer = asyncio.run(scene.post(scene.open(), body=b" " * 1001))
    assert answer.status == 413


@cases("key", ["", "sk-arl-0", "x" * 5000, "\u00ff"])
def test_an_unknown_key_is_401(scene, key):
    scene.open()
    raw = {"authorization": f"Bearer {key}".encode().decode("latin-1")}
    answer = asyncio.run(scene.request("POST", "/v1/chat/completions", b"{}", raw))
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"


def test_a_closed_session_is_410_and_not_to_be_retried(scene, words):
    session = scene.open()
    scene.gateway.close_session(session)
    answer = _post(scene, session, messages=words.FIRST)
    assert (answer.status, answer.headers["x-should-retry"]) == (410, "false")


def test_a_key_opens_its_own_session_only(scene, words):
    one, other = scene.open(), scene.open()
    assert one.key != other.key
    _post(scene, one, messages=words.FIRST)
    assert (one.num_turns, other.num_turns) == (1, 0)
    headers = {"x-api-key": other.key}
    body = json.dumps({"model": "m", "messages": words.FIRST}).encode()
    asyncio.run(scene.request("POST", "/v1/chat/completions", body, headers))
    assert (one.num_turns, other.num_turns) == (1, 1)


def test_closed_keys_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr("agentgym_rl.gateway.session.session._REMEMBERED", 2)
    table = SessionTable()
    policy = SessionSampling(max_tokens=1)
    sessions = [Session(str(n), sampling=policy, turn_timeout_s=1) for n in range(3)]
    for session in sessions:
        table.add(session)
        table.remove(session)
    assert len(table) == 0
    assert [_refusal(table, session.key) for session in sessions] == [401, 410, 410]


def _refusal(table, key):
    with pytest.raises(Exception, match=r"key|closed") as caught:
        table.authenticate(key)
    return caught.value.status


def test_a_prompt_that_leaves_no_room_is_400_in_known_words(stage, words):
    scene = stage([], max_model_len=20)
    session = scene.open()
    answer = _post(scene, session, messages=words.FIRST)
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert "maximum context length is 20 tokens" in answer.error["message"]
    record = scene.gateway.close_session(session)
    assert record.counters["overflows"] == 1
    assert record.infra_error == ""


def test_max_tokens_is_bounded_by_policy_request_and_room(stage, spell, words, chat):
    prompt = len(chat.prompt(words.FIRST, None))
    scene = stage(lambda _: spell.canonical("a" * 50), max_model_len=prompt + 9)
    for policy, asked, expected in ((8, {}, 8), (30, {}, 9), (8, {"max_completion_tokens": 3}, 3)):
        answer = _post(scene, scene.open(max_tokens=policy), messages=words.FIRST, **asked)
        assert answer.body["choices"][0]["finish_reason"] == "length"
        assert scene.engine.journal[-1].sampling.max_tokens == expected
        assert answer.body["usage"]["completion_tokens"] == expected


def test_the_policy_stands_above_the_client(scene, words, chat):
    asked = {"temperature": 0.2, "seed": 5, "stop": "x"}
    _post(scene, scene.open(temperature=0.7, seed=3), messages=words.FIRST, **asked)
    _post(scene, scene.open(temperature=None), messages=words.FIRST, **asked)
    bound, free = (entry.sampling for entry in scene.engine.journal)
    assert bound.temperature == 0.7
    assert bound.seed not in (None, 3, 5)
    assert (free.temperature, free.seed) == (0.2, 5)
    assert bound.stop == ("x",)
    assert bound.stop_token_ids == chat.stop_token_ids


def test_turn_seeds_differ_by_turn_and_repeat_by_run():
    policy = SessionSampling(max_tokens=1, seed=3)
    seeds = [policy.turn_seed(turn) for turn in range(50)]
    assert len(set(seeds)) == 50
    assert seeds == [SessionSampling(max_tokens=9, seed=3).turn_seed(t) for t in range(50)]
    assert all(0 <= seed < 2**48 for seed in seeds)


CUTS = {"top_p": 0.5, "top_k": 3, "min_p": 0.1}


@cases("fields", [CUTS, {"top_p": 0.9}, {"top_k": 9}, {"min_p": 0.01}, {"top_p": 0}])
def test_evaluation_sessions_may_cut_the_distribution(stage, spell, words, fields):
    scene = stage([spell.canonical(words.ANSWER + words.END)])
    assert _post(scene, scene.open(train=False), messages=words.FIRST, **fields).status == 200
    sampling = scene.engine.journal[0].sampling
    asked = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} | fields
    assert (sampling.top_k, sampling.min_p) == (asked["top_k"], asked["min_p"])
    assert not sampling.reports_support
    assert sampling.top_p == (asked["top_p"] or pytest.approx(0, abs=1e-5))


def _reporting(said):
    return ScriptedEngine(said, has_support=True)


@cases("name", CUTS)
@cases("stream", [False, True])
def test_a_cut_that_an_engine_does_not_report_cannot_train(stage, spell, words, name, stream):
    said = [spell.canonical(words.ANSWER + words.END)] * 3
    for engine, num_sampled in ((ScriptedEngine(said), 0), (_reporting(said), 1)):
        scene = stage(engine)
        session = scene.open()
        ask = {"messages": words.FIRST, name: CUTS[name], "stream": stream}
        answer = _post(scene, session, **ask)
        assert (answer.status, answer.error["param"]) == (400, name)
        assert 'gateway.sampling = "session"' in answer.error["message"]
        assert len(engine.journal) == num_sampled  # the second breaks its promise
        assert session.record().rows == []
        assert session.infra_error == ""
        assert _post(scene, scene.open(temperature=0), **ask).status == 200  # nothing is cut


def test_what_was_left_to_draw_from_is_in_the_row(stage, spell, words):
    ids = spell.canonical(words.ANSWER + words.END)
    support = [[id] if at % 2 else [id, 7, 600] for at, id in enumerate(ids)]
    scene = stage(_reporting([words.Say(ids, support=support, chunk=2), words.Say(ids)]))
    session = scene.open()
    message = _post(scene, session, messages=words.FIRST, stream=True, **CUTS).status
    _post(scene, session, messages=words.FIRST)
    rows = session.record().rows
    assert message == 200
    cut, free = rows
    assert free.choices is None
    sampled = cut.turn_ids == 0
    assert cut.loss_mask[sampled].tolist() == [at % 2 == 0 for at in range(len(ids))]
    for index, left in zip(cut.choices.index[sampled], support, strict=True):
        found = [] if index < 0 else token_records.unpacked_set(cut.choices.sets[index])
        bits = np.unpackbits(np.asarray(found, np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits)) == (set(left) if len(left) > 1 else set())
    assert session.counters["single_choice_tokens"] == len(ids) // 2
    assert scene.engine.journal[0].sampling.reports_support


def test_a_token_that_was_not_left_is_the_engines_failure(stage, words):
    scene = stage(_reporting([words.Say([5, 2], support=[[5, 6], [7, 8]])]))
    session = scene.open()
    assert _post(scene, session, messages=words.FIRST, top_p=0.5).status == 503
    assert "drew token 2 from 2 others" in session.infra_error


def test_log_probs_are_the_recorded_ones(scene, words, spell):
    answer = _post(scene, scene.open(), messages=words.FIRST, logprobs=True)
    content = answer.body["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == words.ANSWER
    assert [entry["logprob"] for entry in content] == scene.engine.journal[0].logprobs[:-1]


def test_tool_calls_are_not_read_when_tool_choice_is_none(stage, spell, words):
    scene = stage([spell.canonical(words.CALL + words.END)] * 3)
    tools = {"tools": [words.CALCULATOR]}
    asked = [_post(scene, scene.open(), messages=words.FIRST, **tools, tool_choice="none")]
    asked.append(_post(scene, scene.open(), messages=words.FIRST))
    assert [answer.message["content"] for answer in asked] == [words.CALL] * 2
    assert scene.engine.journal[0].prompt != scene.engine.journal[1].prompt
    answer = _post(scene, scene.open(), messages=words.FIRST, **tools)
    assert answer.body["choices"][0]["finish_reason"] == "tool_calls"


def test_one_call_of_several_is_returned_if_only_one_is_wanted(stage, spell, words):
    said = spell.bytewise(f"{words.CALL}\n{words.CALL}{words.END}")
    scene = stage([said, spell.bytewise(words.ANSWER + words.END)])
    session = scene.open()
    fields = {"tools": [words.CALCULATOR], "parallel_tool_calls": False}
    messages = asyncio.run(scene.play(session, ["12"], **fields))
    assert len(messages[2]["tool_calls"]) == 1
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)


def test_a_message_ends_before_its_stop_string_and_the_tokens_after(stage, spell, words):
    ids = spell.bytewise("12. Stop!")
    scene = stage([words.Say(ids, stop_reason="Stop"), spell.bytewise(words.ANSWER + words.END)])
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["Go on."], stop=["Stop"]))
    assert messages[2]["content"] == "12. "
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)


def test_models_health_and_nothing_else(scene):
    models = asyncio.run(scene.request("GET", "/v1/models"))
    [model] = models.body["data"]
    assert (model["id"], model["rung"], model["rung_why"]) == ("tiny", "sentinel", "")
    assert asyncio.run(scene.request("GET", "/health")).status == 200
    assert asyncio.run(scene.request("GET", "/v1/chat/completions")).status == 405
    assert asyncio.run(scene.request("POST", "/v1/embeddings")).status == 404


@pytest.mark.parametrize("where", ["tools", "chat_template_kwargs", "arguments"])
def test_what_is_nested_too_deeply_is_the_clients_fault(scene, words, where):
    session = scene.open()
    for depth in (100, *range(850, 1010, 20)):
        nest = "[" * depth + "]" * depth
        said = f'{{"role": "user", "content": "{depth}"}}'
        function = f'{{"name": "f", "arguments": {{"q": {nest}}}, "parameters": {{"q": {nest}}}}}'
        call = f'{{"type": "function", "id": "c", "function": {function}}}'
        extra = f'"{where}": [{call}]' if where == "tools" else f'"{where}": {{"deep": {nest}}}'
        if where == "arguments":
            said += f', {{"role": "assistant", "tool_calls": [{call}]}}'
            extra = '"user": "me"'
        body = f'{{"model": "tiny", "messages": [{said}], {extra}}}'
        answer = asyncio.run(scene.post(session, body=body.encode()))
        assert answer.status in (200, 400), answer.data
    assert not session.infra_error
