"""VllmEngine against servers that answer well, in vLLM's way, and badly."""

import asyncio
import base64
import io
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from arl_vllm.client import VllmEngine

from agentgym_rl.core import ContextLengthError, EngineError, RequestRefused, SamplingParams
from agentgym_rl.runtime import read_body, serving
from agentgym_rl.runtime.http_server import reply
from tests.kit.cases import cases


def _choice(ids, finish=None, versions=None, **more):
    content = [{"token_id": t, "logprob": -0.5, "rank": 1, "top_logprobs": []} for t in ids]
    spans = [{"version": v, "start": a, "end": b} for v, a, b in versions] if versions else None
    return {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": content},
        "finish_reason": finish,
        "weight_versions": spans,
        **more,
    }


def _body(*choices):
    return json.dumps({"request_id": "a", "choices": list(choices), "prompt_logprobs": None})


def _events(*bodies):
    return "".join(f"data: {body}\n\n" for body in bodies)


GOOD = ("stop", [("0.0", 0, 1)])


@asynccontextmanager
async def _answering(*answers, **options):
    """A client of a server that gives (status, body) `answers` in turn, the last for ever."""
    seen = []
    left = list(answers)

    async def app(scope, receive, send):
        body = await read_body(receive, limit_bytes=10**6)
        seen.append((scope["method"], scope["path"], json.loads(body) if body else None))
        status, text = left.pop(0) if len(left) > 1 else left[0]
        await reply(send, status, text.encode())

    async with serving(app, host="127.0.0.1", port=0) as url:
        client = VllmEngine(url, **{"timeout_s": 5.0, **options})
        try:
            yield client, seen
        finally:
            await client.close()


def _generate(*answers, stream=False, sampling=None, cache_salt="", **options):
    """(deltas, requests seen) of one call; raises what the call raises."""

    async def play():
        async with _answering(*answers, **options) as (client, seen):
            params = sampling or SamplingParams(max_tokens=4)
            names = {"request_id": "a", "session_id": "s", "cache_salt": cache_salt}
            call = client.generate([1, 2], params, stream=stream, **names)
            try:
                return [delta async for delta in call], seen
            except Exception as error:  # out of the server's task group, which would wrap it
                return error

    outcome = asyncio.run(play())
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_the_request_on_the_wire():
    sampling = SamplingParams(max_tokens=4, temperature=0.7, top_k=5, seed=3, stop=("x",))
    answer = _body(_choice([9], "stop", [("0.4", 0, 1)], decode_times=[1.5], stop_reason="x"))
    (delta,), seen = _generate((200, answer), sampling=sampling)
    params = {"max_tokens": 4, "temperature": 0.7, "top_p": 1.0, "top_k": 5, "seed": 3}
    # Detokenized, because of the stop string.
    params |= {"min_p": 0.0, "stop": ["x"], "logprobs": 0}
    body = {"token_ids": [1, 2], "sampling_params": params, "request_id": "a"}
    assert seen == [("POST", "/inference/v1/generate", body)]
    assert (delta.token_ids, delta.logprobs, delta.versions) == ([9], [-0.5], [4])
    assert (delta.times_s, delta.finish_reason, delta.stop_reason) == ([1.5], "stop", "x")


def _likely(**logprobs):
    return [{"token_id": int(id[1:]), "logprob": value} for id, value in logprobs.items()]


REPORTS = {
    "ids": ({"sampling_mask": [[9, 3]]}, (), [[9, 3]]),
    "log-probs": ({}, _likely(t9=-0.5, t3=-0.9, t4=-9999.0), [[9, 3]]),
    "too few log-probs": ({}, _likely(t9=-0.5, t3=-0.9), []),
    "nothing": ({}, (), []),
}


@cases("what", REPORTS)
@cases("stream", [False, True])
def test_what_a_token_was_drawn_from_is_read_as_the_engine_says_it(what, stream):
    more, likely, support = REPORTS[what]
    choice = _choice([9], *GOOD, **more)
    choice["logprobs"]["content"][0]["top_logprobs"] = list(likely)
    body = _body(choice)
    answer = (200, _events(body, "[DONE]") if stream else body)
    sampling = SamplingParams(max_tokens=4, top_k=20, min_p=0.1)
    options = {"sampling": sampling, "num_alternatives": 50, "stream": stream}
    (delta,), seen = _generate(answer, **options)
    assert list(delta.support) == support
    asked = seen[0][2]["sampling_params"]
    assert (asked["logprobs"], asked["top_k"], asked["min_p"]) == (21, 20, 0.1)
    (delta,), seen = _generate(answer, **options | {"sampling": SamplingParams(4)})
    assert (list(delta.support), seen[0][2]["sampling_params"]["logprobs"]) == ([], 0)


@cases("cut", [{"top_p": 0.5}, {"top_k": 20}])
def test_a_request_that_does_not_train_gets_one_log_prob_a_token(cut):
    engine = VllmEngine("http://127.0.0.1:1", num_alternatives=50)
    asked = [
        engine._sampling_body(SamplingParams(4, **cut, reports_support=reports)).logprobs
        for reports in (True, False)
    ]
    assert asked == [min(cut.get("top_k", 49), 49) + 1, 0]


@cases("cut", [{"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 50}, {"top_k": 49}, {"top_k": 1}])
def test_it_is_known_beforehand_what_an_engine_will_report(cut):
    """Log-probs of 50 tokens tell what was left if there is one among them that was not."""
    sampling = SamplingParams(4, **cut)
    few = VllmEngine("http://127.0.0.1:1", num_alternatives=50).no_support(sampling)
    assert few == ("" if 0 < cut.get("top_k", 0) < 50 else few)
    assert "set top_k, to 49 or less" in few or cut.get("top_k", 50) < 50
    assert VllmEngine("http://127.0.0.1:1").no_support(sampling) == ""


def test_sets_of_another_length_are_malformed():
    answer = (200, _body(_choice([9], *GOOD, sampling_mask=[[9], [9]])))
    with pytest.raises(EngineError, match="1 token_ids, and a sampling_mask of 2"):
        _generate(answer, sampling=SamplingParams(4, top_p=0.5))


def _npy(array):
    """As vLLM 0.32 sends experts: vllm/utils/serial_utils.py, numpy2base64."""
    with io.BytesIO() as file:
        np.save(file, array, allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode("ascii")


@cases("stream", [False, True])
@cases("kind", [np.uint8, np.uint16, np.int32])
def test_experts_are_read_as_vllm_tells_them(kind, stream):
    ids = np.arange(4 * 3 * 2).reshape(4, 3, 2)  # of prompt and reply, but the last token
    head = _body(_choice([3]))
    last = _choice([4, 5], "length", [("0.1", 0, 3)], routed_experts=_npy(ids[1:].astype(kind)))
    whole = _choice([3, 4, 5], "length", [("0.1", 0, 3)], routed_experts=_npy(ids[1:].astype(kind)))
    body = _events(head, _body(last), "[DONE]") if stream else _body(whole)
    sampling = SamplingParams(max_tokens=3, experts_from=1)
    deltas, seen = _generate((200, body), sampling=sampling, stream=stream)
    assert seen[0][2]["sampling_params"]["routed_experts_prompt_start"] == 1
    assert not any(delta.experts for delta in deltas[:-1])
    ((start, experts),) = deltas[-1].experts
    assert (start, experts.tolist(), experts.dtype) == (1, ids[1:].tolist(), np.int16)
    deltas, seen = _generate((200, body), stream=stream)
    assert not deltas[-1].experts
    assert "routed_experts_prompt_start" not in seen[0][2]["sampling_params"]


def test_an_engine_that_tells_no_experts_is_taken_at_its_word():
    sampling = SamplingParams(max_tokens=3, experts_from=0)
    (delta,), _ = _generate((200, _body(_choice([9], *GOOD))), sampling=sampling)
    assert not delta.experts
    answer = (200, _body(_choice([9], "stop", None)))  # older than its parameter
    _, seen = _generate(answer, sampling=sampling, has_spans=False)
    assert "routed_experts_prompt_start" not in seen[0][2]["sampling_params"]


@cases(
    "told",
    [_npy(np.zeros((1, 2, 2), np.uint8)), _npy(np.zeros((2, 2), np.uint8)), "no base 64", "AAAA"],
)
def test_experts_of_other_tokens_are_malformed(told):
    answer = (200, _body(_choice([9], *GOOD, routed_experts=told)))
    with pytest.raises(EngineError, match="routed_experts"):
        _generate(answer, sampling=SamplingParams(4, experts_from=0))


def test_options_on_the_wire():
    answer = (200, _body(_choice([9], *GOOD)))
    params = SamplingParams(max_tokens=4, seed=3)
    _, seen = _generate(answer, sampling=params, send_seed=False, cache_salt="0.4")
    body = seen[0][2]
    assert body["cache_salt"] == "0.4"
    assert "seed" not in body["sampling_params"]
    assert body["sampling_params"]["detokenize"] is False


VLLM_STREAM = [
    _body(_choice([1, 2])),
    _body(_choice([3])),
    _body(_choice([4], "length", [("0.1", 0, 2), ("0.2", 2, 4)])),
]


def test_tokens_come_at_once_and_versions_when_the_engine_says_them():
    deltas, _ = _generate((200, _events(*VLLM_STREAM, "[DONE]")), stream=True)
    assert [d.token_ids for d in deltas] == [[1, 2], [3], [4]]
    assert [d.versions for d in deltas] == [[], [], [1, 1, 2, 2]]
    assert [len(d.times_s) for d in deltas] == [2, 1, 1]
    assert [d.finish_reason for d in deltas] == [None, None, "length"]


def test_spans_said_twice_count_once():
    chunks = [
        _body(_choice([1, 2], None, [("0.1", 0, 2)])),
        _body(_choice([3], None, [("0.2", 2, 3)])),
        _body(_choice([], "stop", [("0.1", 0, 2), ("0.2", 2, 3)])),
    ]
    deltas, _ = _generate((200, _events(*chunks, "[DONE]")), stream=True)
    assert [(d.token_ids, d.versions) for d in deltas] == [([1, 2], [1, 1]), ([3], [2]), ([], [])]


@cases("stream", [False, True])
def test_an_engine_without_spans_gives_no_versions(stream):
    body = _body(_choice([1, 2], "stop"))
    answer = (200, _events(body, "[DONE]") if stream else body)
    deltas, _ = _generate(answer, stream=stream, has_spans=False)
    assert [(d.token_ids, d.versions) for d in deltas] == [([1, 2], [])]


def test_an_abort_before_the_first_token_has_no_spans():
    answer = (200, _events(_body(_choice([], "abort")), "[DONE]"))
    deltas, _ = _generate(answer, stream=True)
    assert [(d.token_ids, d.versions, d.finish_reason) for d in deltas] == [([], [], "abort")]


@cases("end", ["", "data: [DONE]\n\n", 'data: {"error": {"message": "it died", "code": 500}}\n\n'])
def test_what_came_before_a_stream_broke_is_handed_on(end):
    text = _events(*VLLM_STREAM[:2]) + end

    async def play():
        got = []
        async with _answering((200, text)) as (client, _):
            try:
                async for delta in _stream(client):
                    got += delta.token_ids
            except EngineError as error:
                return got, str(error)
        return got, "no error"

    got, error = asyncio.run(play())
    assert got == [1, 2, 3]
    assert "finish_reason" in error or "it died" in error


def _stream(client):
    params = SamplingParams(max_tokens=4)
    return client.generate([1], params, request_id="a", session_id="s", stream=True)


LATE_LIE = _body(_choice([4], "stop", [("0.1", 0, 2), ("0.2", 1, 4)]))


@cases(
    "answer, stream, words",
    [
        ((200, _events(_body(_choice([1], None, GOOD[1])), "[DONE]")), True, "finish_reason"),
        ((200, ""), True, "without a finish_reason"),
        ((200, _events('{"error": {"message": "boom"}}', "[DONE]")), True, "boom"),
        ((200, _events("{oops")), True, "malformed"),
        ((200, "not json"), False, "malformed"),
        ((200, _body()), False, "one choice"),
        ((200, _body(_choice([1], None, GOOD[1]))), False, "no finish_reason"),
        ((200, _body(_choice([1], "stop"))), False, "weight_versions cover 0"),
        ((200, _body(_choice([1, 2], *GOOD))), False, "weight_versions cover 1"),
        ((200, _body(_choice([1], "stop", [("default", 0, 1)]))), False, "default"),
        ((200, _body(_choice([1], *GOOD) | {"logprobs": None})), False, "0 logprobs"),
        ((200, _body(_choice([1], *GOOD, decode_times=[1.0, 2.0]))), False, "2 decode_times"),
        ((200, _body(_choice([1], "eos", GOOD[1]))), False, "unknown finish_reason"),
        ((200, _body(_choice([1], "stop", [("0.0", 0, 2)]))), False, r"\[0, 2\) of 1"),
        ((200, _events(_body(_choice([1], None, [("0.0", 1, 1)])))), True, r"\[1, 1\) of 1"),
        ((200, _events(*VLLM_STREAM[:2], LATE_LIE)), True, "does not go with the 2 versions"),
        ((200, _body(_choice([1], *GOOD)).replace("-0.5", "-9999.0")), False, "has no log-prob"),
        ((500, '{"error": {"message": "the engine broke"}}'), False, "HTTP 500: the engine broke"),
        ((502, "<html>bad gateway"), False, "HTTP 502: <html>bad"),
        ((400, '{"error": {"message": "top_p"}}'), False, "HTTP 400: top_p"),
    ],
)
def test_failures_are_engine_errors_that_name_the_url(answer, stream, words):
    with pytest.raises(EngineError, match=rf"http://127\.0\.0\.1.*{words}"):
        _generate(answer, stream=stream)


TOO_LONG = (
    '{"message": "it is full", "code": "context_length_exceeded"}',
    '{"message": "This model\'s maximum context length is 9 tokens.", "code": 400}',
    '{"message": "The prompt is longer than the maximum model length of 9.", "code": 400}',
)


@cases("stream", [False, True])
@cases("error", TOO_LONG)
def test_a_full_context_has_its_own_error(error, stream):
    text = f'{{"error": {error}}}'
    answer = (200, _events(text, "[DONE]")) if stream else (400, text)
    with pytest.raises(ContextLengthError, match=r"full|maximum"):
        _generate(answer, stream=stream)


REFUSED = '{"error": {"message": "out of vocabulary", "type": "BadRequestError", "code": 400}}'


@cases(
    "answer, stream, refused",
    [
        ((400, REFUSED), False, True),
        ((200, _events(REFUSED, "[DONE]")), True, True),  # vLLM checks after it said 200
        ((404, '{"detail": "Not Found"}'), False, True),
        ((401, '{"error": "Unauthorized"}'), False, True),
        ((429, '{"error": "too many requests"}'), False, False),
        ((503, '{"error": "The model is currently scaling."}'), False, False),
        ((500, '{"error": {"message": "EngineCore encountered an issue", "code": 500}}'), 0, False),
    ],
)
def test_a_refused_request_is_told_from_a_failed_engine(answer, stream, refused):
    with pytest.raises(EngineError) as caught:
        _generate(answer, stream=stream)
    assert isinstance(caught.value, RequestRefused) is refused
    words = ("vocabulary", "Not Found", "Unauthorized", "too many", "scaling", "EngineCore")
    assert any(word in str(caught.value) for word in words)  # the reason was kept
