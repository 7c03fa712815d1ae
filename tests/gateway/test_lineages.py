"""Helpers have lineages of their own, and rewards find the turns they are for."""

import asyncio

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.template.template import ChatTemplate
from tests.docs.blocks import blocks
from tests.kit.cases import cases

TITLES = [{"role": "system", "content": "Name this."}, {"role": "user", "content": "3*4?"}]
AND = {"role": "user", "content": "And?"}


@pytest.fixture
def scene(stage, spell, words):
    return stage([spell.bytewise(f"{n}." + words.END) for n in range(99)])


def _ask(scene, session, messages, **fields):
    return asyncio.run(scene.post(session, messages=messages, **fields)).body


def _helped(scene, session, words):
    """A title first, then two turns of the agent; the ids of the three replies."""
    tools = [words.CALCULATOR]
    title = _ask(scene, session, TITLES)
    first = _ask(scene, session, words.FIRST, tools=tools)
    said = first["choices"][0]["message"]
    second = _ask(scene, session, [*words.FIRST, said, AND], tools=tools)
    return [body["id"] for body in (title, first, second)]


@pytest.mark.parametrize("main_tools", [["calculator"], ["lookup"], []])
def test_a_title_that_comes_first_is_not_the_main_lineage(scene, words, main_tools):
    session = scene.open()
    session.main_tools = main_tools
    _helped(scene, session, words)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert [row.lineage for row in record.rows] == [1, 0]
    assert record.counters["forks_new_root"] == record.counters["forks"] == 1
    assert record.counters["side_turns"] == 1


def test_without_side_lineages_the_agent_trains_and_its_title_does_not(stage, spell, words):
    config = GatewayConfig(train_side_lineages=False)
    scene = stage([spell.bytewise(f"{n}." + words.END) for n in range(9)], config=config)
    session = scene.open()
    _helped(scene, session, words)
    title, agent = session.record().rows
    assert (title.num_trained, agent.num_trained) == (0, agent.counts.sampled)


ORDERS = {
    "the environment's tools": ("T AA BBB", ["a"], 1),
    "the most turns of those with the tools": ("T A AA2 BBBB", ["a"], 2),
    "the most turns": ("TT A BBB", [], 2),
    "tools, of equals": ("T A", [], 1),
    "the first, of equals": ("A B", [], 0),
}
"""Conversations, a letter for each turn: T for a title, others for a tool of that name."""


@cases("what", ORDERS)
def test_the_main_lineage_is_the_agents(scene, words, what):
    conversations, main_tools, main = ORDERS[what]
    session = scene.open()
    session.main_tools = main_tools
    for word in conversations.split():
        function = {**words.CALCULATOR["function"], "name": word[0].lower()}
        tools = {} if word[0] == "T" else {"tools": [{"type": "function", "function": function}]}
        messages = [{"role": "system", "content": word}, AND]
        for _ in word.rstrip("2"):
            said = _ask(scene, session, messages, **tools)["choices"][0]["message"]
            messages = [*messages, said, AND]
    assert [row.lineage for row in session.record().rows].index(0) == main


def test_a_client_may_name_the_main_lineage(scene, words):
    session = scene.open()
    session.main_tools = ["calculator"]
    ids = _helped(scene, session, words)
    named = {"messages": TITLES, "headers": {"x-arl-lineage": "main"}}
    again = asyncio.run(scene.post(session, **named))
    assert again.status == 200
    record = session.record()
    assert [row.lineage for row in record.rows] == [0, 1, 0]
    assert record.counters["side_turns"] == 2
    wrong = {"messages": TITLES, "headers": {"x-arl-lineage": "other"}}
    refused = asyncio.run(scene.post(session, **wrong))
    assert (refused.status, refused.error["param"]) == (400, "x-arl-lineage")
    assert len(ids) == 3


@pytest.mark.parametrize("side", [True, False])
def test_a_simulated_user_may_be_left_out_and_the_agent_s_helpers_train(stage, spell, words, side):
    config = GatewayConfig(train_side_lineages=side)
    scene = stage([spell.bytewise(f"{n}." + words.END) for n in range(9)], config=config)
    session = scene.open()
    user = {"messages": [{"role": "system", "content": "You are the customer."}, AND]}
    for _ in range(5):  # more turns than the agent has
        left_out = scene.post(session, headers={"x-arl-lineage": "untrained"}, **user)
        assert asyncio.run(left_out).status == 200
    _ask(scene, session, user["messages"])  # once said is said
    _helped(scene, session, words)
    record = session.record()
    trained = {row.lineage: row.num_trained > 0 for row in record.rows}
    assert trained == {0: True, 1: False, 2: side}
    assert sorted(row.lineage for row in record.rows) == [0, *[1] * 6, 2]


def test_tools_under_a_servers_name_are_the_environments(scene, words):
    session = scene.open()
    session.main_tools = ["calculator"]
    _ask(scene, session, TITLES)
    function = {**words.CALCULATOR["function"], "name": "mcp__env__calculator"}
    _ask(scene, session, words.FIRST, tools=[{"type": "function", "function": function}])
    assert [row.lineage for row in scene.gateway.close_session(session).rows] == [1, 0]


def test_key_order_in_tools_parts_nothing(scene, words):
    session = scene.open()
    said = _ask(scene, session, words.FIRST, tools=[words.CALCULATOR])["choices"][0]["message"]
    turned = dict(reversed(words.CALCULATOR.items()))
    _ask(scene, session, [*words.FIRST, said, AND], tools=[turned])
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)


def test_rewards_of_turns_flow_back_along_the_conversation(scene, words):
    session = scene.open()
    session.main_tools = ["calculator"]
    ids = _helped(scene, session, words)
    session.reward(2.0)
    session.reward(1.0, turn=ids[2])
    session.reward(0.25, turn=1)
    session.reward(0.5, turn=1)
    session.reward(-1.0, lineage=1)
    credit = scene.gateway.close_session(session).credit
    assert credit.episode_reward == 2.0
    assert list(credit.parents) == [-1, -1, 1]
    assert list(credit.lineages) == [1, 0, 0]
    assert credit.turn_returns(discount=0.5) == [-1.0, 0.75 + 0.5, 1.0]
    assert credit.turn_returns(discount=1.0) == [-1.0, 1.75, 1.0]


def test_the_rewards_that_the_documents_show_are_paid(scene, words):
    (shown,) = (
        block.text
        for block in blocks("python", "docs/sessions.md")
        if "session.reward" in block.text
    )
    session = scene.open()
    session.main_tools = ["calculator"]
    ids = _helped(scene, session, words)
    exec(shown.replace("chatcmpl-…", ids[1]), {"session": session})
    credit = scene.gateway.close_session(session).credit
    assert credit.episode_reward == 1.0
    assert credit.turn_returns(discount=1.0) == [0.5, -0.2, 0.0]


def test_rewards_flow_along_edges_and_not_in_the_order_of_sampling(scene, words):
    """Turn 1 is a sibling of turn 0, sampled before turn 2, which goes on from turn 0."""
    session = scene.open()
    first = _ask(scene, session, words.FIRST)["choices"][0]["message"]
    _ask(scene, session, words.FIRST)
    _ask(scene, session, [*words.FIRST, first, AND])
    session.reward(1.0, turn=2)
    assert scene.gateway.close_session(session).credit.turn_returns(0.5) == [0.5, 0.0, 1.0]


def test_turns_that_were_rendered_anew_still_follow_those_before(stage, spell, words, chat):
    plain = "{% for m in messages %}{{ m.role ~ ': ' ~ (m.content or '') ~ '\\n' }}{% endfor %}"
    other = ChatFormat(chat._tokenizer, ChatTemplate(plain, special_tokens={}), [chat.close_id])
    scene = stage([spell.bytewise("Yes." + words.END)] * 2, chat=other)
    session = scene.open()
    asyncio.run(scene.play(session, ["Sure?"]))
    session.reward(1.0, turn=1)
    record = scene.gateway.close_session(session)
    assert (len(record.rows), record.counters["forks_template"]) == (2, 1)
    assert record.credit.turn_returns(0.5) == [0.5, 1.0]


def test_unpaid_sessions_have_no_returns_and_know_their_edges(scene, words):
    session = scene.open()
    _helped(scene, session, words)
    credit = scene.gateway.close_session(session).credit
    assert (credit.turn_returns(1.0), credit.episode_reward) == ([], 0.0)
    assert (list(credit.parents), list(credit.lineages)) == ([-1, -1, 1], [1, 0, 0])


@pytest.mark.parametrize(
    ("value", "where", "match"),
    [
        (float("nan"), {}, "finite"),
        (1e308, {}, "within ±1e"),
        (-float("inf"), {"lineage": 0}, "within ±1e"),
        (10**400, {"turn": 0}, "within ±1e"),
        (1.0, {"turn": 3}, "3 turns"),
        (1.0, {"turn": -1}, "turn -1"),
        (1.0, {"turn": "chatcmpl-e1-0"}, "no answered turn"),
        (1.0, {"lineage": 2}, "2 lineages"),
        (1.0, {"turn": 0, "lineage": 0}, "not of both"),
    ],
)
def test_a_reward_that_belongs_to_nothing_is_refused(scene, words, value, where, match):
    session = scene.open()
    _helped(scene, session, words)
    with pytest.raises(ValueError, match=match):
        session.reward(value, **where)


BILLING = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=sdk-cli;"
WITH_BILLING = {
    "a block": ("/v1/messages", lambda line: {"system": [_text(line), _text("Be.")]}),
    "a line": ("/v1/messages", lambda line: {"system": f"{line}\nBe."}),
    "of chat": ("/v1/chat/completions", lambda line: _chat(f"{line}\nBe.")),
    "a part": ("/v1/chat/completions", lambda line: _chat([_text(line), _text("Be.")])),
    "instructions": ("/v1/responses", lambda line: {"instructions": f"{line}\nBe."}),
}


def _text(text):
    return {"type": "text", "text": text}


def _chat(content):
    return {"messages": [{"role": "system", "content": content}]}


@cases("where", WITH_BILLING)
def test_a_line_for_the_service_s_bill_is_no_text_for_the_model(scene, words, where):
    """Claude Code's changes at a compaction."""
    path, system = WITH_BILLING[where]
    session = scene.open()
    hello, answered = [{"role": "user", "content": "Hi"}], {"role": "assistant", "content": "{}."}
    said, start = list(hello), len(scene.engine.journal)
    for line in (BILLING.format("4d8"), BILLING.format("cf6")):
        fields = {"max_tokens": 50, **system(line)} if path == "/v1/messages" else system(line)
        given = "input" if path == "/v1/responses" else "messages"
        fields[given] = fields.get(given, []) + said
        number = len(scene.engine.journal)
        assert asyncio.run(scene.post(session, path=path, **fields)).status == 200
        said += [answered | {"content": f"{number}."}, *hello]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal[start:])
    assert (len(record.rows), record.counters["forks"]) == (1, 0)
    assert record.messages[0] == {"role": "system", "content": record.messages[0]["content"]}
    assert "billing" not in str(record.messages)


def test_a_system_text_that_is_only_the_bill_s_line_is_none(scene):
    session = scene.open()
    fields = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    for system in ({}, {"system": [_text(BILLING.format("4d8"))]}, {"system": ""}):
        asyncio.run(scene.post(session, path="/v1/messages", **fields, **system))
    assert len({entry.prompt for entry in scene.engine.journal}) == 1
