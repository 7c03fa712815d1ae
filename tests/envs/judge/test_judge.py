"""Judges over HTTP: rubrics, pairs, panels, the cache, costs, and whose fault a failure is."""

import asyncio
import contextlib
import json
import multiprocessing
import re
import sqlite3

import pytest
from arl_envs.judge import Criterion, Judge, Panel, RewardModel, by_pairs
from arl_envs.judge import endpoint as calls
from arl_envs.judge import watch as watching
from arl_envs.judge.cache import VerdictCache
from arl_envs.judge.judge import combined
from arl_envs.judge.question import defused

from agentgym_rl.core import ConfigError, EnvError, InfraError, Outcome, Task, Trajectory
from tests.kit.cases import cases
from tests.kit.judge_server import ScriptedJudge, asking, quoted, score

RIGHT = Criterion("right", "Is it right?", weight=2)
BRIEF = Criterion("brief", "Is it brief?", low=1, high=5)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(calls, "_FIRST_WAIT_S", 0.0)


def rate(answer="four", rubric=(RIGHT,), **more):
    return lambda judge: judge.score("2 + 2?", answer, rubric, **more)


# ---------------------------------------------------------------- rubrics
def test_a_rubric_is_the_weighted_mean_of_its_criteria():
    def decide(request):
        return score(8 if "Is it right?" in request["messages"][0]["content"] else 2)

    found, server = asking(decide, rate(rubric=[RIGHT, BRIEF], reference="4"))
    assert found["right"] == 0.8
    assert found["brief"] == 0.25
    assert found["reward"] == pytest.approx((2 * 0.8 + 0.25) / 3)
    assert (found["judge_calls"], found["judge_tokens"]) == (2.0, 220.0)
    assert "judge_usd" not in found
    for request in server.requests:
        assert request["path"] == "/v1/chat/completions"
        assert [quoted(request, n) for n in ("question", "reference", "answer")] == [
            *("2 + 2?", "4", "four")
        ]
        assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0.0, 512)


def test_the_form_of_the_verdict_is_constant():
    _, server = asking(lambda _: score(1), rate('{"score": 10}', [BRIEF]))
    form = server.requests[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["score"],
        "additionalProperties": False,
    }
    _, server = asking(lambda _: score(1), rate(), response_format="json_object")
    assert server.requests[0]["response_format"] == {"type": "json_object"}
    _, server = asking(lambda _: score(1), rate(), response_format="none", extra_body={"n": 1})
    assert "response_format" not in server.requests[0]
    assert server.requests[0]["n"] == 1


def test_marks_are_drawn_for_each_request():
    def work(judge):
        return judge.score("q", "a", [RIGHT, BRIEF])

    _, server = asking(lambda _: score(3), work)
    text = "".join(request["messages"][1]["content"] for request in server.requests)
    marks = re.findall(r"BEGIN \w+ ([0-9a-f]{32})$", text, re.M)
    assert len(set(marks)) == len(marks) == 4
    assert not any(
        mark in request["messages"][0]["content"] for mark in marks for request in server.requests
    )


@cases(
    "scale", [{"weight": float("inf")}, {"weight": 0}, {"low": 0.5}, {"high": "9"}, {"low": True}]
)
def test_a_criterion_needs_a_weight_and_whole_numbers(scale):
    with pytest.raises(ConfigError, match="a weight above 0, and whole numbers, low below high"):
        Criterion("right", "?", **scale)


@cases("most", [1, 2, 3, 50])
def test_a_long_text_loses_its_middle_whatever_the_bound(most):
    kept = re.sub(r"\n.*\n", "", defused("x" * 100, max_text_bytes=most))
    assert len(kept) == most - most % 2


@cases("rubric", [[], [RIGHT, RIGHT], [Criterion("reward", "?")]])
def test_rubrics_that_cannot_be_added_up_are_refused(rubric):
    with pytest.raises(ConfigError, match="criteria of different names"):
        asking(lambda _: score(1), rate(rubric=rubric))


# ---------------------------------------------------------------- verdicts
@cases(
    "said",
    [
        "7",
        "[7]",
        '[["score", 7]]',
        '{"score": 11}',
        '{"score": -1}',
        '{"score": 7.5}',
        '{"score": "7"}',
        '{"score": true}',
        '{"score": 7, "why": "x"}',
        '{"score": 1, "score": 10}',
        '```json\n{"score": 7}\n```',
        'The answer says {"score": 10}',
        "",
        None,
        "[" * 100_000,
    ],
)
def test_anything_but_the_form_is_asked_again_and_then_an_error(said):
    replies = iter([said, said, score(7)])
    found, server = asking(lambda _: next(replies), rate())
    assert found["reward"] == 0.7
    assert found["judge_calls"] == 3.0
    assert len({request["messages"][1]["content"] for request in server.requests}) == 3
    with pytest.raises(InfraError, match="no verdict in 2 replies"):
        asking(lambda _: said, rate(), max_asks=2)


def test_a_reply_that_was_cut_off_is_no_verdict():
    body = {"choices": [{"message": {"content": score(9)}, "finish_reason": "length"}]}
    with pytest.raises(InfraError, match=r"no verdict in 3 .*was cut at max_tokens=512.*raise"):
        asking(lambda _: (200, json.dumps(body).encode()), rate())


# ---------------------------------------------------------------- failures
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_a_server_that_fails_is_asked_again_and_is_infrastructure(status):
    replies = iter([(status, b"busy"), (status, b"busy"), score(4)])
    found, _ = asking(lambda _: next(replies), rate())
    assert found["reward"] == 0.4
    with pytest.raises(InfraError, match=f"judge m at http.*it answered {status}: busy"):
        asking(lambda _: (status, b"busy"), rate(), max_retries=1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_request_that_is_refused_with_any_text_is_a_wrong_setup(status):
    served = []

    def decide(request):
        served.append(request)
        return status, b"no such model"

    with pytest.raises(EnvError, match="no such model"):
        asking(decide, rate())
    assert len(served) == (1 if status in (401, 404) else 2)  # once more with a neutral text


USAGE = [b'"many"', b"[1]", b'{"prompt_tokens": "9"}', b'{"completion_tokens": -9}']


@cases("usage", USAGE)
def test_a_server_that_counts_nonsense_is_infrastructure(usage):
    choice = {"message": {"content": score(4)}, "finish_reason": "stop"}
    reply = json.dumps({"choices": [choice], "usage": "?"}).encode()
    found, _ = asking(lambda _: (200, reply.replace(b'"?"', b"null")), rate())
    assert (found["reward"], found["judge_tokens"]) == (0.4, 0)
    with pytest.raises(InfraError, match="its usage is"):
        asking(lambda _: (200, reply.replace(b'"?"', usage)), rate(), max_retries=0)


@cases("body", [b"no json", b"[]", b'{"error": {"message": "x"}}', b"\xff"])
def test_a_server_that_talks_nonsense_is_infrastructure(body):
    with pytest.raises(InfraError):
        asking(lambda _: (200, body), rate(), max_retries=0)


def test_a_judge_that_is_not_there_is_infrastructure():
    judge = Judge("m", base_url="http://127.0.0.1:9/v1", max_retries=1)
    with pytest.raises(InfraError, match=r"judge m at http://127.0.0.1:9/v1: \w+"):
        asyncio.run(judge.score("q", "a", [RIGHT]))


class Hanging(ScriptedJudge):
    async def __call__(self, scope, receive, send) -> None:
        await asyncio.sleep(3600)


def test_a_judge_that_hangs_is_infrastructure():
    def work(url):
        judge = Judge("m", base_url=url, timeout_s=0.05, max_retries=1)
        return judge.score("q", "a", [RIGHT])

    with pytest.raises(InfraError, match="TimeoutError"):
        Hanging(lambda _: "").during(work)


def test_keys_are_sent_and_never_shown(monkeypatch):
    with pytest.raises(EnvError, match="no key in A_KEY"):
        asking(lambda _: score(1), rate(), api_key_env="A_KEY")
    monkeypatch.setenv("A_KEY", "sk-secret")
    _, server = asking(lambda _: score(1), rate(), api_key_env="A_KEY")
    assert server.headers[0][b"authorization"] == b"Bearer sk-secret"
    with pytest.raises(EnvError, match="wrong key") as caught:
        asking(lambda _: (401, b"wrong key sk-secret"), rate(), api_key_env="A_KEY")
    assert "sk-secret" not in str(caught.value)


@cases(
    "settings, said",
    [
        ({}, "expected a URL"),
        ({"base_url": "localhost:8000"}, "expected http"),
        ({"base_url": "http://host:99999/v1"}, "expected http"),
        ({"base_url": "http://"}, "expected http"),
        ({"price_prompt": 1.0, "base_url": "http://x"}, "together, or neither"),
        ({"response_format": "xml", "base_url": "http://x"}, "allowed: json_schema"),
        ({"max_asks": 0, "base_url": "http://x"}, "max_asks 0"),
        ({"timeout_s": 0, "base_url": "http://x"}, "seconds above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Judge("m", **settings)


def test_no_more_than_max_concurrent_questions_are_under_way():
    rubric = [Criterion(f"c{n}", "?") for n in range(12)]
    _, server = asking(lambda _: score(1), rate(rubric=rubric), max_concurrent=3)
    assert 1 <= server.most <= 3


# ---------------------------------------------------------------- pairs and panels
def by_length(request) -> str:
    """Prefers the longer answer."""
    first, second = (len(quoted(request, f"{n} answer")) for n in ("first", "second"))
    return score(1 if first == second else 2 * (first > second))


def test_a_comparison_is_made_in_both_orders():
    found, server = asking(by_length, lambda judge: judge.compare("q", "long", "x", "longer"))
    assert (found.score, found.costs["judge_calls"]) == (1.0, 2.0)
    assert [quoted(r, "first answer") for r in server.requests] in (["long", "x"], ["x", "long"])
    found, _ = asking(lambda _: score(2), lambda judge: judge.compare("q", "a", "b", "?"))
    assert found.score == 0.5  # a judge that only looks at places prefers neither


def test_equal_answers_are_not_compared():
    found, server = asking(by_length, lambda judge: judge.compare("q", "a", "a", "?"))
    assert (found.score, server.requests) == (0.5, [])


@cases("opponents, calls", [(None, 12), (1, 8), (2, 12), (9, 12)])
def test_answers_are_ranked_by_their_mean_result(opponents, calls):
    answers = ["a", "bb", "ccc", "dddd"]
    found, server = asking(
        by_length, lambda judge: judge.rank("q", answers, "longer", opponents=opponents)
    )
    assert len(server.requests) == calls
    rewards = [one["reward"] for one in found]
    assert rewards[0] == 0.0
    assert rewards[-1] == 1.0
    assert sum(rewards) == 2.0
    assert sum(one["judge_calls"] for one in found) == calls


def test_too_few_answers_cannot_be_ranked():
    with pytest.raises(ConfigError, match="at least 2 answers"):
        asking(by_length, lambda judge: judge.rank("q", ["a"], "?"))


def test_a_group_is_rewarded_by_pairs():
    def member(number, said):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": said}]
        return Trajectory(str(number), "g", "t", Outcome.COMPLETED, 0.0, [], messages=messages)

    members = [member(0, "a"), member(1, "bb")]
    found, server = asking(
        by_length, lambda judge: by_pairs(judge, "longer", weight=0.5)(Task("t", 0), members)
    )
    assert [one["reward"] for one in found] == [0.0, 0.5]
    assert quoted(server.requests[0], "question") == "q"


@cases(
    "scores, how, expected",
    [
        ([1, 2, 6], "mean", 3.0),
        ([1, 2, 6], "median", 2),
        ([1, 6, 6], "majority", 6.0),
        ([1, 1, 6, 6], "majority", 3.5),
        ([1, 2, 6], "majority", 3.0),
    ],
)
def test_scores_of_a_panel_are_combined(scores, how, expected):
    assert combined(scores, how) == expected


def test_a_panel_asks_all_and_needs_all():
    def decide(request):
        said = {"m1": score(2), "m2": score(4), "m3": score(9), "gone": (503, b"")}
        return said[request["model"]]

    def panel(*names):
        def work(url):
            judges = [Judge(name, base_url=url, max_retries=0) for name in names]
            return Panel(judges).score("q", "a", [RIGHT])

        return ScriptedJudge(decide).during(work)

    found = panel("m1", "m2", "m3")
    assert (found["reward"], found["judge_calls"]) == (0.4, 3.0)
    with pytest.raises(InfraError, match="judge gone"):
        panel("m1", "gone")
    with pytest.raises(ConfigError, match="at least 2"):
        Panel([])


# ---------------------------------------------------------------- the cache
def test_a_question_is_asked_once(tmp_path):
    async def twice(judge):
        return await judge.score("q", "a", [RIGHT]), await judge.score("q", "a", [RIGHT])

    cache = tmp_path / "kept" / "verdicts.db"
    (first, again), server = asking(lambda _: score(6), twice, cache=cache)
    assert len(server.requests) == 1
    assert first == {"reward": 0.6, "right": 0.6, "judge_calls": 1.0, "judge_tokens": 110.0}
    assert again == {"reward": 0.6, "right": 0.6, "judge_calls": 0.0, "judge_cached": 1.0}


def test_the_same_question_at_the_same_time_is_asked_once(tmp_path):
    async def many(judge):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(judge.score("q", "a", [RIGHT]))

    _, server = asking(lambda _: score(6), many, cache=tmp_path / "c.db")
    assert len(server.requests) == 1


def test_another_text_criterion_or_setting_is_another_question(tmp_path):
    async def several(judge):
        for answer, rubric in (("a", RIGHT), ("b", RIGHT), ("a", BRIEF)):
            await judge.score("q", answer, [rubric])

    _, server = asking(lambda _: score(3), several, cache=tmp_path / "c.db")
    assert len(server.requests) == 3
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db")) as db:
        ((count,),) = db.execute("SELECT count(*) FROM verdicts")
    assert count == 3


def test_failures_are_not_kept(tmp_path):
    replies = iter([(503, b""), score(6)])

    async def twice(judge):
        with pytest.raises(InfraError):
            await judge.score("q", "a", [RIGHT])
        return await judge.score("q", "a", [RIGHT])

    found, _ = asking(lambda _: next(replies), twice, cache=tmp_path / "c.db", max_retries=0)
    assert found["reward"] == 0.6


def _put_many(path: str, number: int) -> None:
    async def put():
        cache = VerdictCache(path)
        return [await cache.put(f"question {i}", number) for i in range(50)]

    kept = asyncio.run(put())
    assert all(found is not None for found in kept)


def test_several_processes_keep_one_verdict_for_a_question(tmp_path):
    path = str(tmp_path / "c.db")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_put_many, args=(path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(250)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with contextlib.closing(sqlite3.connect(path)) as db:
        ((count,),) = db.execute("SELECT count(*) FROM verdicts")
    assert count == 50


def test_a_verdict_can_be_read_while_another_process_writes(tmp_path):
    """A new file, since only the first connection would change its kind of journal."""
    path = tmp_path / "c.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE verdicts (key TEXT PRIMARY KEY, score INT)")
        other.execute("BEGIN IMMEDIATE")
        assert asyncio.run(VerdictCache(path).get("question")) is None


def test_a_file_that_is_no_cache_is_named(tmp_path):
    (tmp_path / "c.db").write_text("no database, though it is long enough to be read as one" * 9)
    with pytest.raises(EnvError, match=r"c\.db: .*remove the file"):
        asking(lambda _: score(6), rate(), cache=tmp_path / "c.db")


@pytest.mark.parametrize("columns", ["key, verdict", "key TEXT PRIMARY KEY, score INT, cost"])
def test_a_cache_of_another_form_is_no_infrastructure(tmp_path, columns):
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db")) as db:
        db.execute(f"CREATE TABLE verdicts ({columns})")
    with pytest.raises(EnvError, match=r"c\.db: .*remove the file"):
        asking(lambda _: score(6), rate(), cache=tmp_path / "c.db")
    (tmp_path / "file").touch()
    with pytest.raises(EnvError, match="name another"):
        asking(lambda _: score(6), rate(), cache=tmp_path / "file" / "c.db")


@pytest.mark.parametrize("kept", ["'six'", "99", "NULL", "5.5"])
def test_a_kept_verdict_that_is_on_no_scale_is_refused(tmp_path, kept):
    async def twice(judge):
        first = await rate()(judge)
        with contextlib.closing(sqlite3.connect(tmp_path / "c.db")) as db:
            db.execute(f"UPDATE verdicts SET score = {kept}")
            db.commit()
        with pytest.raises(EnvError, match="is on no scale from 0 to 10; remove the file"):
            await rate()(judge)
        return first

    assert asking(lambda _: score(6), twice, cache=tmp_path / "c.db")[0]["reward"] == 0.6


# ---------------------------------------------------------------- costs and warnings
def test_money_is_counted_where_prices_are_given():
    found, _ = asking(lambda _: score(6), rate(), price_prompt=2.0, price_completion=8.0)
    assert found["judge_usd"] == pytest.approx((2 * 100 + 8 * 10) / 1e6)


def test_a_cost_that_is_known_in_part_is_not_told():
    def panel(*prices):
        def work(url):
            how = [{} if p is None else {"price_prompt": p, "price_completion": p} for p in prices]
            return Panel([Judge("m", base_url=url, **one) for one in how]).score("q", "a", [RIGHT])

        return ScriptedJudge(lambda _: score(6)).during(work)

    assert "judge_usd" not in panel(2.0, None)
    assert panel(2.0, 1.0)["judge_usd"] == pytest.approx(330e-6)


def test_a_judge_that_says_the_same_to_everything_is_named_once(caplog):
    watch = watching.Watch("m", warn_usd=1e9)
    for _ in range(200):
        watch.verdict("style", 7)
    for number in range(200):
        watch.verdict("right", number % 2)
    (line,) = caplog.messages
    assert "judge m gave the score 7 to all of its first 64 texts by the criterion 'style'" in line


def test_a_cost_that_grows_is_named_once(caplog):
    watch = watching.Watch("m", warn_usd=1.0)
    for call in range(300):
        watch.call(100 if call < 100 else 250, usd=0.0)
    (line,) = caplog.messages
    assert "201 tokens per call by now, and took 100 at first" in line
    for _ in range(3):
        watch.call(100, usd=0.6)
    assert "has cost $1.20" in caplog.messages[1]
    assert len(caplog.messages) == 2


# ---------------------------------------------------------------- reward models
def scored(decide, **settings):
    server = ScriptedJudge(decide)
    found = server.during(
        lambda url: RewardModel("rm", base_url=url, **settings).score("q", "<|a|>")
    )
    return found, server


def classified(*probs) -> tuple[int, bytes]:
    data = [{"index": 0, "label": "LABEL_0", "probs": probs, "num_classes": len(probs)}]
    return 200, json.dumps({"data": data, "usage": {"prompt_tokens": 7}}).encode()


def test_a_reward_model_is_asked_for_its_logit():
    found, server = scored(lambda _: classified(-3.25))
    assert found == {"reward": -3.25, "judge_calls": 1.0, "judge_tokens": 7.0}
    (request,) = server.requests
    assert (request["path"], request["use_activation"]) == ("/classify", False)
    assert request["messages"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "< | a|>"},
    ]


def test_a_classifier_of_several_labels_is_no_reward_model():
    with pytest.raises(EnvError, match="expected one label"):
        scored(lambda _: classified(0.1, 0.9))


def test_a_reward_model_that_fails_is_infrastructure():
    with pytest.raises(InfraError, match="503"):
        scored(lambda _: (503, b""), max_retries=1)


def test_a_score_of_a_reward_model_is_a_finite_number():
    with pytest.raises(InfraError, match="its score is no number: 1111"):
        scored(lambda _: (200, b'{"data": [{"probs": [%s]}]}' % (b"1" * 400)))
