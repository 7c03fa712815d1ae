"""Training rows equal, token for token, what the engine was fed and what it sampled."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway.session.nodes import Sample
from agentgym_rl.gateway.session.tree import Tree
from tests.kit.cases import cases


def _replies(spell, words, how):
    said = getattr(spell, how)
    texts = (words.CALL, words.CALL, words.ANSWER)
    return [said(text + words.END) for text in texts]


@cases("stream", [False, True])
@cases("how", ["canonical", "bytewise"])
def test_a_tool_episode_is_one_exact_row(stage, spell, words, how, stream):
    scene = stage(_replies(spell, words, how))
    session = scene.open()
    if stream:
        asyncio.run(_play_streamed(scene, session, words))
    else:
        asyncio.run(scene.play(session, ["12", "1 ✓"], tools=[words.CALCULATOR]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.num_turns == 3
    assert record.counters["forks"] == 0
    assert record.counters["tool_calls"] == 2
    assert record.counters["trained_tokens"] == record.counters["sampled_tokens"]


async def _play_streamed(scene, session, words):
    messages = list(words.FIRST)
    for observation in ("12", "13", None):
        answer = await scene.post(session, messages=messages, tools=[words.CALCULATOR], stream=True)
        message = _joined(answer.events)
        messages += [message, *(words.observe(message, observation) if observation else [])]


def _joined(events):
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _retokenized(chat, sample):
    ids = chat.encode(chat.text(sample.ids))
    if ids == sample.ids:
        return sample
    size = len(ids)
    return Sample(ids, [-1.0] * size, [0] * size, [0] * size, [1.0] * size, sample.temperature)


class RetokenizingTree(Tree):
    """Planted: keeps what was said, not what was sampled."""

    def __init__(self, chat):
        super().__init__()
        self._chat = chat

    def commit(self, context, sample, message, **more):
        sample = _retokenized(self._chat, sample)
        return super().commit(context, sample, message, **more)


class RetokenizingAtExport(RetokenizingTree):
    """Planted: feeds the engine exactly, and spoils the record afterwards."""

    def commit(self, context, sample, message, **more):
        cause = Tree.commit(self, context, sample, message, **more)
        self.spoilt = [_retokenized(self._chat, node.sample) for node in self.turns]
        return cause


def _planted_record(scene, session, words):
    asyncio.run(scene.play(session, ["12", "13"], tools=[words.CALCULATOR]))
    for node, sample in zip(session.tree.turns, getattr(session.tree, "spoilt", ()), strict=False):
        node.sample = sample
    return scene.gateway.close_session(session)


@pytest.mark.parametrize("planted", [RetokenizingTree, RetokenizingAtExport])
def test_a_retokenizing_gateway_is_caught(stage, spell, words, chat, planted):
    scene = stage(_replies(spell, words, "bytewise"))
    session = scene.open()
    session.tree = planted(chat)
    record = _planted_record(scene, session, words)
    with pytest.raises(AssertionError):
        words.check_exact(record.rows, scene.engine.journal)


@pytest.mark.parametrize("planted", [RetokenizingTree, RetokenizingAtExport])
def test_only_the_tokens_give_the_plant_away(stage, spell, words, chat, planted):
    scene = stage(_replies(spell, words, "canonical"))
    session = scene.open()
    session.tree = planted(chat)
    record = _planted_record(scene, session, words)
    words.check_exact(record.rows, scene.engine.journal)


TOKENS = st.lists(st.integers(0, 600), min_size=0, max_size=12)
TEXTS = st.text(max_size=20)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(TOKENS, st.booleans(), TEXTS), min_size=1, max_size=4))
@pytest.mark.slow
def test_any_tokens_at_all_are_recorded_exactly(chat, words, turns):
    stops = set(chat.stop_token_ids)
    says = []
    for ids, closes, _ in turns:
        ids = [id for id in ids if id not in stops]
        says.append(Say([*ids, chat.close_id] if closes else ids, "stop" if closes else "length"))
    scene = words.Stage(chat, says)
    session = scene.open()
    texts = [text for *_, text in turns[:-1]]
    asyncio.run(scene.play(session, texts, tools=[words.CALCULATOR]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_versions_are_those_of_the_engine_per_token(stage, spell, words):
    ids = spell.canonical(words.ANSWER + words.END)
    versions = [7] * 3 + [8] * (len(ids) - 3)
    scene = stage([Say(ids, versions=versions)])
    session = scene.open()
    asyncio.run(scene.play(session, []))
    [row] = scene.gateway.close_session(session).rows
    assert row.policy_versions[-len(ids) :].tolist() == versions
    words.check_exact([row], scene.engine.journal)


def test_a_weight_update_inside_a_turn_is_stamped_by_the_engine(stage, spell, words):
    ids = spell.canonical(words.ANSWER + words.END)
    engine = ScriptedEngine([Say(ids, delay_s=0.005)])
    scene = stage(engine)
    session = scene.open()

    async def play():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.play(session, []))
            async with asyncio.timeout(60):
                while not (engine.journal and engine.journal[0].token_ids):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            await engine.pause(interrupt="keep")
            await engine.update_weights("", version=1)
            await engine.resume()

    asyncio.run(play())
    [row] = scene.gateway.close_session(session).rows
    words.check_exact([row], engine.journal)
    assert set(row.policy_versions[row.loss_mask].tolist()) == {0, 1}


def test_a_turn_cut_by_length_is_closed_by_the_template_not_by_the_model(stage, spell, words, chat):
    cut = spell.canonical(words.ANSWER)
    scene = stage([Say(cut, "length"), spell.canonical(words.ANSWER + words.END)])
    session = scene.open()
    asyncio.run(scene.play(session, ["Go on."]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    first, second = scene.engine.journal
    close_at = len(first.prompt) + len(cut)
    assert second.prompt[close_at] == chat.close_id
    assert not record.rows[0].loss_mask[close_at]
    assert record.counters["length_turns"] == 1


def test_the_engine_is_fed_what_transformers_would_feed_it(stage, spell, words, chat):
    scene = stage(_replies(spell, words, "canonical"))
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["12", "13"], tools=[words.CALCULATOR]))
    whole = chat.prompt(messages[:-1], [words.CALCULATOR])
    assert list(scene.engine.journal[-1].prompt) == whole


@pytest.mark.parametrize("logprob", [-9999.0, float("-inf"), float("nan")])
def test_a_token_without_a_log_prob_does_not_train(stage, spell, words, logprob):
    ids = spell.canonical(words.ANSWER + words.END)
    scene = stage([Say(ids, logprobs=[-0.5, logprob, *[-0.25] * (len(ids) - 2)])])
    session = scene.open()
    asyncio.run(scene.play(session, []))
    [row] = scene.gateway.close_session(session).rows
    assert row.loss_mask[-len(ids) :].tolist() == [True, False] + [True] * (len(ids) - 2)
    assert row.behavior_logprobs[-len(ids) + 1] == 0


@pytest.mark.parametrize("policy", [{"temperature": 0.0}, {"train": False}])
def test_greedy_and_evaluation_turns_are_recorded_and_do_not_train(stage, spell, words, policy):
    ids = spell.canonical(words.ANSWER + words.END)
    scene = stage([ids])
    session = scene.open(**policy)
    asyncio.run(scene.play(session, []))
    record = scene.gateway.close_session(session)
    assert record.rows[0].tokens[-len(ids) :].tolist() == ids
    assert record.rows[0].policy_versions[-len(ids) :].tolist() == [0] * len(ids)
    assert record.rows[0].num_trained == record.counters["trained_tokens"] == 0
    assert record.counters["sampled_tokens"] == len(ids)
    assert record.counters["greedy_turns"] == int("temperature" in policy)
