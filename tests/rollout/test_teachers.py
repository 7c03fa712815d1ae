"""Served teachers: what is asked of them, what is kept, and what happens when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.served_teachers import _CONVERSATION, ServedTeachers
from tokenizers import Tokenizer

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.core import Choices, ConfigError, InfraError, Row, Task, cause_of
from agentgym_rl.core.token_records import ALL, packed_set
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import OpenGroups
from agentgym_rl.runtime import read_body, serving
from agentgym_rl.runtime.http_server import reply
from agentgym_rl.storage import EpisodeLog
from tests.kit.cases import cases
from tests.kit.groups import make_group, make_row

TASK = Task("t", 1, {"level": 2})


@dataclass
class Server:
    """A server of completions: the log-prob of a token is −its id / 10, and nothing else works."""

    tokenizer: Tokenizer
    answer: Callable[[dict[str, Any]], tuple[int, Any]] | None = None
    """Another answer to a completion, if it is wanted."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    card: dict[str, Any] = field(default_factory=lambda: {"id": "big"})
    renders: Any = None
    """The tokens of the conversation that its template renders, or the status in their place."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = await read_body(receive, limit_bytes=10**6)
        status, found = 200, {"data": [self.card]}
        if scope["path"] == "/tokenize" and self.renders is not None:
            found = {"tokens": self.renders} if isinstance(self.renders, list) else {}
            status = 200 if found else int(self.renders)
        if scope["path"] == "/v1/completions":
            asked = json.loads(body)
            self.asked.append(asked)
            status, found = (self.answer or self.echo)(asked)
        text = found if isinstance(found, bytes) else json.dumps(found).encode()
        await reply(send, status, text)

    def echo(self, asked: dict[str, Any]) -> tuple[int, Any]:
        assert (asked["echo"], asked["max_tokens"], asked["model"]) == (True, 0, "big")
        ids = asked["prompt"]
        if isinstance(ids, str):
            ids = self.tokenizer.encode(ids, add_special_tokens=False).ids
        return 200, told(-one / 10 for one in ids)


def told(numbers) -> dict[str, Any]:
    _, *rest = numbers
    return {"choices": [{"logprobs": {"token_logprobs": [None, *rest]}}]}


@contextlib.asynccontextmanager
async def teaching(answer=None, *, folder=BUNDLED, models: Sequence[dict] = ({},), **keys):
    """A server, and the client of the teachers, each of which is this server."""
    server = Server(Tokenizer.from_file(str(folder / "tokenizer.json")), answer)
    async with asyncio.timeout(120), serving(server, host="127.0.0.1", port=0) as server.url:
        given = [{"model": server.url, **one} for one in models]
        config = TeacherConfig.model_validate({"models": given, **keys})
        async with ServedTeachers(config) as teachers:
            yield server, teachers


def taught(episode, answer=None, **how) -> list[Row]:
    async def play():
        async with teaching(answer, **how) as (_, teachers):
            return (await teachers.added(episode, TASK)).rows

    return run(play())


def run(play: Coroutine[Any, Any, Any]) -> Any:
    """The result; an error as itself, and not as the group of the server's tasks."""
    try:
        return asyncio.run(play)
    except BaseExceptionGroup as group:
        raise cause_of(group) from None


def episode_of(*rows: Row):
    return replace(make_group("g", [0]).members[0], rows=rows, env_id="math")


def test_trained_tokens_get_the_log_probs_of_the_teachers_of_their_task():
    models = [{}, {"only": {"level": 3}}, {"only": {"level": 2, "env_id": "math"}}]
    models.append({"model": "a/folder"})
    (row, other) = taught(episode_of(make_row([0, 0]), make_row([0], prompt=4)), models=models)
    nan = float("nan")
    expected = [[nan] * 4] * 3 + [[-0.3, nan, -0.3, nan], [-0.4, nan, -0.4, nan]]
    np.testing.assert_allclose(row.teacher_logprobs.logprobs, np.array(expected, np.float32))
    assert other.teacher_logprobs.logprobs[4, 0] == np.float32(-0.4)
    assert taught(episode_of(row), models=[{"only": {"no": 1}}])[0] is row  # nobody is asked


def test_a_token_that_was_drawn_otherwise_is_not_taught():
    """The server knows nothing of a grammar, or of another temperature."""
    row = make_row([0, 0, 0])
    index = np.array([ALL] * 4 + [0, ALL], np.int32)
    heat = np.array([0, 0, 0, 1, 1, 0.5], np.float32)
    row = replace(row, choices=Choices(index, [packed_set(b"\x05")]), temperatures=heat)
    (found,) = taught(episode_of(row))
    assert (~np.isnan(found.teacher_logprobs.logprobs[:, 0])).tolist() == [False] * 3 + [
        True,
        False,
        False,
    ]
    assert found.teacher_logprobs.index.tolist() == [False] * 3 + [True, False, False]


@cases(
    "renders, said",
    [
        ([1, 2, 3], "has another chat template than the policy"),
        (400, "does not tell its chat template (/tokenize of messages says 400"),
        (
            ChatFormat.load(BUNDLED).prompt(_CONVERSATION, ()),
            "",
        ),
        (404, ""),
        (None, ""),
    ],
    ids=range(5),
)
def test_a_server_with_another_template_is_named(renders, said, caplog):
    async def play():
        async with teaching() as (server, teachers):
            server.renders = renders
            await teachers.check(BUNDLED, longest=10)

    caplog.clear()
    run(play())
    warnings = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    assert bool(said) == bool(warnings)
    assert all(said in text for text in warnings)


def test_a_server_that_is_down_for_a_while_is_asked_again(monkeypatch):
    monkeypatch.setattr("arl_objectives.served_teachers._RETRY_AFTER_S", 0.01)
    left = [(503, b"loading"), (500, b"oops"), (429, b"busy")]
    server = Server(Tokenizer.from_file(str(BUNDLED / "tokenizer.json")))
    (row,) = taught(
        episode_of(make_row([0])), lambda asked: left.pop() if left else server.echo({**asked})
    )
    assert row.teacher_logprobs.logprobs[3, 0] == np.float32(-0.3)
    assert not left


def test_a_server_that_stays_away_ends_the_run(monkeypatch):
    monkeypatch.setattr("arl_objectives.served_teachers._RETRY_AFTER_S", 0.01)
    with pytest.raises(InfraError, match=r"has not answered for 0.2 s .*503 loading.*--resume"):
        taught(episode_of(make_row([0])), lambda asked: (503, b"loading"), patience_s=0.2)

    async def gone():
        async with teaching(patience_s=0.2) as (server, _):
            url = server.url
        async with ServedTeachers(
            TeacherConfig.model_validate({"models": url, "patience_s": 0.2})
        ) as t:
            await t.added(episode_of(make_row([0])), TASK)

    with pytest.raises(InfraError, match="has not answered"):
        run(gone())


@cases(
    "answer, said",
    [
        ((404, b"no such route"), "refuses POST /v1/completions: 404 no such route"),
        ((200, b"<html>"), "is no JSON"),
        ((200, {"choices": [{"text": "x", "logprobs": None}]}), "tells no log-probs of a prompt"),
        ((200, told([0, -1, -1])), "tells 3 log-probs of 4 tokens"),
        ((200, told([0, -1, -1, -1, -1, -1])), "tells 6 log-probs of 4 tokens"),
        ((200, told([0, -1, -1, 0.5])), "0.5, which is no log-prob"),
        ((200, told([0, -1, float("nan"), -1])), "nan, which is no log-prob, of token 2"),
        ((200, told([0, -1, -float("inf"), -1])), "-inf, which is no log-prob"),
        ((200, told([0, -1, -1e308, -1])), r"-1e\+308, which is no log-prob"),
        ((200, told([0, -1, -9999.0, -1])), "-9999.0, which is no log-prob.*finite logits"),
        ((200, {"a": "x" * 1_100_000}), "too large: at most 1,0.* bytes are read, it has 1,1"),
        ((200, b"[" * 200_000), "is no JSON"),
        ((200, told([0, -1, -1, None])), "tells no log-probs"),
        ((200, told([0, -1, -1, -(10**400)])), "tells no log-probs"),
        ((200, b"[" * 100_000), "is no JSON"),
    ],
)
def test_a_wrong_answer_is_no_number(answer, said):
    with pytest.raises(ConfigError, match=said):
        taught(episode_of(make_row([0])), lambda asked: answer)


@cases("card", [{}, {"id": 3}, {"id": "big", "max_model_len": "long"}, "big", None])
def test_a_server_that_names_no_model_is_refused(card):
    async def check():
        async with teaching() as (server, teachers):
            server.card = card
            await teachers.check(BUNDLED, longest=9)

    with pytest.raises(ConfigError, match="names no model at /v1/models"):
        run(check())


def test_a_server_may_add_the_token_that_it_sampled():
    (row,) = taught(episode_of(make_row([0])), lambda asked: (200, told([0, -1, -1, -7, -9])))
    assert row.teacher_logprobs.logprobs[3, 0] == -7


@pytest.mark.parametrize("fits", [True, False])
def test_a_server_of_another_tokenizer_is_refused(fits, tmp_path):
    theirs = json.loads((BUNDLED / "tokenizer.json").read_text())
    if not fits:
        theirs["model"]["vocab"] = swapped(theirs["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(theirs))

    async def check():
        async with teaching(folder=tmp_path) as (server, teachers):
            await teachers.check(BUNDLED, longest=8)
            return server.asked

    if not fits:
        with pytest.raises(ConfigError, match="another tokenizer than the policy"):
            run(check())
        return
    texts = [it["prompt"] for it in run(check()) if isinstance(it["prompt"], str)]
    assert sum("<|im_start|>" in text for text in texts) == 2


@cases("room, taken, refused", [(99, 0, False), (8, 8, False), (8, 7, True), (5, 5, True)])
def test_a_server_that_cannot_take_the_longest_row_is_refused(room, taken, refused):
    """vLLM's context has to hold one token more than the row; others take as many as they say."""

    async def check():
        async with teaching() as (server, teachers):
            server.card["max_model_len"] = room
            fits = server.echo
            long = 400, b"longer than the maximum"
            server.answer = lambda it: long if it["prompt"] == [0] * 8 and taken < 8 else fits(it)
            await teachers.check(BUNDLED, longest=8)
            return sum(it["prompt"] == [0] * 8 for it in server.asked)

    if refused:
        said = rf"context of {room} tokens, and rows have up to 8 .*with 9 .*to {room - 1}.*longer"
        with pytest.raises(ConfigError, match=said):
            run(check())
    else:
        assert run(check()) == (room == 8)


def swapped(vocab: dict[str, int]) -> dict[str, int]:
    """The vocabulary with the ids of digits the other way round."""
    return vocab | {str(digit): vocab[str(9 - digit)] for digit in range(10)}


def test_the_log_has_what_was_told_before_the_episode_counts(tmp_path):
    async def play():
        config, log = RolloutConfig(group_size=1), EpisodeLog(tmp_path / "episodes.db")
        async with teaching() as (_, teachers):
            groups = OpenGroups(config, Buffer(config, total_groups=1), log, additions=[teachers])
            group = groups.admit_task(0, TASK)
            member = replace(episode_of(make_row([0])), episode_id="g0-0", group_id="g0")
            assert await groups.add(group, member)
            await groups.finish(group)
        [kept] = log.trajectories()
        log.close()
        return kept, group.members["g0-0"]

    kept, member = run(play())
    assert member.rows[0].teacher_logprobs.logprobs[3, 0] == np.float32(-0.3)
    assert (
        kept.rows[0].teacher_logprobs.logprobs.tobytes()
        == member.rows[0].teacher_logprobs.logprobs.tobytes()
    )
