"""Texts that a judge cannot or will not judge: defused, bounded, and no way out of training."""

import json
import re
import unicodedata

import pytest
from arl_envs.judge import Criterion, Judge, Panel, RewardModel
from arl_envs.judge import endpoint as calls
from arl_envs.judge.question import defused

from agentgym_rl.core import EnvError, InfraError
from tests.kit.cases import cases
from tests.kit.judge_server import ScriptedJudge, asking, quoted, score

RIGHT = Criterion("right", "Is it right?")
BRIEF = Criterion("brief", "Is it brief?", low=1, high=5)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(calls, "_FIRST_WAIT_S", 0.0)


def rate(answer="four", rubric=(RIGHT,)):
    return lambda judge: judge.score("2 + 2?", answer, rubric)


# ---------------------------------------------------------------- texts
@cases("char", ["😀", "界", "é", "x", "<", "["])
def test_a_text_is_bounded_by_its_bytes(char):
    text = defused(char * 24_000 + "]a", max_text_bytes=1000)
    assert len(re.sub(r"\n\[\d+ characters are left out\]\n", "", text).encode()) <= 1000


TOKENS = re.findall(
    r"\S+",
    """<|im_start|> <|im_end|> <|user|> <|assistant|> <|endoftext|> </s> <s> <eoh> <eoa> <eop>
    <start_of_turn> <sop> <<SYS>> <|channel|> <｜User｜> <｜end▁of▁sentence｜>
    <|START_OF_TURN_TOKEN|> <extra_id_0> <unused7> <seed:bos> <[end▁of▁sentence]> <0x0A> <role>
    [INST] [/INST] [gMASK] [sMASK] [MASK] [SEP] [unused7] [UNUSED_TOKEN_146] [TOOL_CALLS]
    [control_8] [IMG_BREAK] [start_header_id] [extra_id_0] [EOT] [|user|] [|endofturn|]
    [AVAILABLE_TOOLS] [THINK] ]~b] ]~!b[ [e~[ ]!p~[ ]!d~[ ]<]image[>[ ]<]speech[>[ |ENDOFTEXT|
    |NEWLINE| |||IP_ADDRESS||| >>TITLE<<""",
)


def _wide(text):
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


@cases("form", [str, _wide, lambda token: token.replace("<", "\ufe64").replace("]", "\ufe48")])
def test_no_control_token_of_a_model_stays_whole(form):
    for token in (form(token) for token in TOKENS):
        for text in (token, f"x{token}y", f"{token}{token}"):
            seen = unicodedata.normalize("NFKC", defused(text, max_text_bytes=1000))
            assert unicodedata.normalize("NFKC", token) not in seen, token


def test_words_and_numbers_in_brackets_are_left_alone():
    text = "a[1] = x[i] + [2, 3] if a < b | c > d else ~e  # see [12], [the page](url)!"
    assert defused(text, max_text_bytes=1000) == text


# ---------------------------------------------------------------- refusals
def ended(by: str | None, content: str | None = None, **more) -> tuple[int, bytes]:
    message = {"message": {"content": content, **more}, "finish_reason": by}
    return 200, json.dumps({"choices": [message]}).encode()


REFUSALS = {
    "context": (400, b'{"error": {"message": "maximum context length is 32768 tokens"}}'),
    "status of a firewall": (403, b"<html>blocked</html>"),
    "large": (413, b""),
    "filter": ended("content_filter"),
    "model": ended("stop", refusal="I cannot help with that."),
    "other filter": ended("SAFETY"),
    "no choice": (200, b'{"choices": []}'),
    "router": (200, b'{"error": {"code": 403, "message": "moderation"}}'),
    "code": (200, b'{"error": {"code": "content_filter", "message": "?"}}'),
}
SILENCES = {"cut": ended("length", "Well, "), "words": "I will not.", "error": ended("error")}


def touchy(answer):
    """A judge that gives `answer` about a text with the word forbidden, and else 7."""
    return lambda request: answer if "forbidden" in quoted(request, "answer") else score(4)


@cases("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_text_that_the_judge_refuses_has_the_lowest_score(refusal, caplog):
    found, server = asking(touchy(refusal), rate("forbidden", [RIGHT, BRIEF]))
    assert (found["reward"], found["right"], found["judge_refused"]) == (0.0, 0.0, 2.0)
    assert len(server.requests) == 2 * 3
    assert "which gets the lowest score (judge_refused)" in caplog.text
    found, _ = asking(touchy(refusal), rate("fine"))
    assert (found["reward"], "judge_refused" in found) == (0.4, False)


@cases("silence", SILENCES.values(), ids=SILENCES)
def test_a_text_on_which_the_judge_gives_no_verdict_has_the_lowest_score(silence, caplog):
    found, server = asking(touchy(silence), rate("forbidden"))
    assert (found["reward"], found["judge_no_verdict"], found["judge_calls"]) == (0.0, 1.0, 7.0)
    assert len(server.requests) == 7
    assert caplog.text.count("no verdict in 3 replies") == 1


def test_a_judge_that_fails_between_is_infrastructure():
    replies = iter([(400, b"no"), (503, b""), (503, b"")])
    with pytest.raises(InfraError, match="503"):
        asking(lambda _: next(replies), rate("forbidden"), max_retries=1)


@cases("status", [204, 301, 401, 402, 404, 405, 410])
def test_a_key_or_an_address_is_no_fault_of_a_text(status):
    """They may be wrong at one of several servers behind a name."""
    with pytest.raises(EnvError, match=f"it answered {status}"):
        asking(touchy((status, b"")), rate("forbidden"))


@cases("choices", ["x", {"0": 1}, [None], [5], [{"message": "x"}], [{"message": [1]}]])
def test_an_answer_of_another_form_is_infrastructure(choices):
    answer = 200, json.dumps({"choices": choices}).encode()
    with pytest.raises(InfraError, match="its answer has no message"):
        asking(touchy(answer), rate("forbidden"))


def test_a_judge_that_refuses_once_is_asked_again():
    replies = iter([(400, b"no"), score(2), score(4)])
    found, _ = asking(lambda _: next(replies), rate("forbidden"))
    assert (found["reward"], "judge_refused" in found) == (0.4, False)


def test_a_question_that_is_refused_is_not_blamed_on_its_answer():
    with pytest.raises(EnvError, match="it answered 400"):
        asking(lambda r: (400, b"q") if "2 +" in quoted(r, "question") else score(4), rate())


def test_a_blamed_text_is_not_kept_in_the_cache(tmp_path):
    refused = touchy(REFUSALS["filter"])
    found, _ = asking(refused, rate("forbidden"), cache=tmp_path / "v")
    again, _ = asking(lambda _: score(4), rate("forbidden"), cache=tmp_path / "v")
    assert (found["reward"], again["reward"]) == (0.0, 0.4)


def test_a_panel_gives_a_refused_text_the_lowest_score_of_its_judge():
    def decide(request):
        blamed = request["model"] == "b" and "forbidden" in quoted(request, "answer")
        return (400, b"no") if blamed else score(8)

    def work(url):
        both = [Judge(name, base_url=f"{url}/v1") for name in "ab"]
        return Panel(both, combine="mean").score("q", "forbidden", [RIGHT])

    found = ScriptedJudge(decide).during(work)
    assert (found["reward"], found["judge_refused"]) == (0.4, 1.0)


def test_an_answer_that_prevents_comparisons_loses_all():
    def decide(request):
        texts = [quoted(request, f"{n} answer") for n in ("first", "second")]
        return (400, b"no") if any("forbidden" in text for text in texts) else score(1)

    answers = ["fine", "forbidden", "good", "also forbidden"]
    found, _ = asking(decide, lambda judge: judge.rank("q", answers, "better"))
    assert [one["reward"] for one in found] == [(0.5 + 2) / 3, 0.0, (0.5 + 2) / 3, 0.0]
    assert ["judge_refused" in one for one in found] == [False, True, False, True]


def test_the_longer_of_two_answers_is_blamed_for_a_context_that_holds_either():
    def decide(request):
        text = request["messages"][1]["content"]
        return (400, b"maximum context length") if len(text) > 1000 else score(1)

    found, _ = asking(decide, lambda judge: judge.compare("q", "a" * 500, "b" * 400, "better"))
    assert (found.score, [*found.blamed]) == (0.0, ["first answer"])


def test_parameters_that_the_model_does_not_know_are_left_out():
    def decide(request):
        for name in ("max_tokens", "temperature"):
            if name in request:
                return 400, f"'{name}' is not supported: max_completion_tokens is".encode()
        return score(4)

    def work(judge):
        async def twice():
            return [await judge.score("q", text, [RIGHT]) for text in "ab"]

        return twice()

    found, server = asking(decide, work, max_tokens=99)
    assert [one["reward"] for one in found] == [0.4, 0.4]
    sent = [[k in r for k in ("max_tokens", "temperature")] for r in server.requests]
    assert sent == [[True, True], [False, True], [False, False], [False, False]]
    assert server.requests[-1]["max_completion_tokens"] == 99


def test_a_refusal_that_repeats_the_text_changes_no_parameter():
    refusal = 400, b"your prompt: temperature max_completion_tokens"
    found, server = asking(touchy(refusal), rate("forbidden"))
    assert found["judge_refused"] == 1.0
    neutral = next(r for r in server.requests if quoted(r, "answer") != "forbidden")
    assert (neutral["max_tokens"], neutral["temperature"]) == (512, 0.0)


def test_a_message_that_the_reward_model_refuses_has_the_lowest_reward():
    def decide(request):
        if "forbidden" in request["messages"][-1]["content"]:
            return 400, b"maximum context length"
        return 200, b'{"data": [{"probs": [0.5]}]}'

    def scored(decide, **settings):
        server = ScriptedJudge(decide)
        return server.during(lambda u: RewardModel("r", base_url=u, **settings).score("q", word))

    word = "forbidden"
    assert scored(decide) == {"reward": -20.0, "judge_calls": 3.0, "judge_refused": 1.0}
    assert scored(decide, lowest=3.0)["reward"] == 0.5
    with pytest.raises(EnvError, match="wrong key"):
        scored(lambda _: (401, b"wrong key"))
