"""Whatever clients do to a conversation, every sampled token trains in exactly one row."""

import asyncio
import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.config import GatewayConfig

SYSTEMS = ["Solve.", "You write titles."]
TEXT = st.text(st.sampled_from("az é✓漢\n<"), max_size=6)
REPLY = st.tuples(st.sampled_from(["text", "call", "thought", "cut"]), TEXT)
KINDS = ["go", "go", "go", "again", "edit", "compact", "helper", "samples"]
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), TEXT)


class World:
    """Conversations of one session, and what clients may do to them."""

    def __init__(self, words, chat, spell, replies, **config):
        self.words = words
        self.said = 0
        self.spell = spell
        self.replies = replies
        self.scene = words.Stage(chat, self.reply, config=GatewayConfig(**config))
        self.session = self.scene.open()
        self.talks = []
        self.ask(0, [{"role": "user", "content": "3*4?"}])

    def reply(self, _):
        """Every reply is another one, or rows could not be told apart."""
        kind, text = self.replies[self.said % len(self.replies)]
        self.said += 1
        text = f"{self.said}: {text}"
        if kind == "cut":
            return self.words.Say(self.spell.bytewise(text), "length")
        if kind == "call":
            call = {"name": "calculator", "arguments": {"expression": text}}
            text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        if kind == "thought":
            text = f"<think>hm {self.said}</think>{text}"
        return self.spell.bytewise(text + self.words.END)

    def ask(self, helper, messages, **fields):
        """A request, and the conversation with its reply."""
        head = [{"role": "system", "content": SYSTEMS[helper]}]
        tools = {} if helper else {"tools": [self.words.CALCULATOR]}
        body = asyncio.run(
            self.scene.post(self.session, messages=head + messages, **tools, **fields)
        ).body
        chosen = body["choices"][-1]["message"]
        self.talks.append((helper, [*messages, chosen]))

    def step(self, kind, number, text):
        helper, talk = self.talks[number % len(self.talks)]
        talk = copy.deepcopy(talk)
        if kind == "again":
            self.ask(helper, talk[:-1])
        elif kind == "samples":
            self.ask(helper, talk + self.words.observe(talk[-1], text), n=2)
        elif kind == "compact":
            self.ask(helper, [{"role": "user", "content": f"So far: {text}"}, *talk[-1:], _user()])
        elif kind == "helper":
            self.ask(1 - helper, [_user(f"Name this: {text}")])
        else:
            if kind == "edit":
                _edit(talk[number % len(talk)], text)
            self.ask(helper, talk + self.words.observe(talk[-1], text))


def _user(text="And?"):
    return {"role": "user", "content": text}


def _edit(message, text):
    if message.get("tool_calls"):
        arguments = json.dumps({"expression": text})
        message["tool_calls"][0]["function"]["arguments"] = arguments
    else:
        message["content"] = f"{text}!"


@settings(max_examples=20, deadline=None)
@given(
    replies=st.lists(REPLY, min_size=1, max_size=5),
    steps=st.lists(STEP, max_size=10),
    thinking=st.sampled_from(["as_generated", "template"]),
    edited=st.sampled_from(["fork", "trust"]),
)
def test_every_sampled_token_trains_in_exactly_one_row(
    words, chat, spell, replies, steps, thinking, edited
):
    config = {"thinking_history": thinking, "edited_calls": edited, "canary_fraction": 1}
    world = World(words, chat, spell, replies, **config)
    for step in steps:
        world.step(*step)
    record = world.scene.gateway.close_session(world.session)
    rows, journal = record.rows, world.scene.engine.journal
    words.check_exact(rows, journal, num_rows=len(rows))
    counters = record.counters
    assert counters["forks"] == len(rows) - 1
    assert counters["forks"] == sum(n for name, n in counters.items() if name.startswith("forks_"))
    for row in rows:
        shown = chat.text(row.tokens[:24].tolist())
        assert SYSTEMS[row.lineage] in shown
    assert counters["side_turns"] == sum(
        SYSTEMS[1] in chat.text(list(entry.prompt[:24])) for entry in journal
    )


@settings(max_examples=10, deadline=None)
@given(replies=st.lists(REPLY, min_size=1, max_size=3), steps=st.lists(STEP, max_size=6))
def test_side_lineages_may_be_context_only(words, chat, spell, replies, steps):
    world = World(words, chat, spell, replies, train_side_lineages=False)
    for step in [*steps, ("helper", 0, "")]:
        world.step(*step)
    record = world.scene.gateway.close_session(world.session)
    assert record.counters["side_turns"] > 0
    sampled = sum(len(world.session.tree.turns[n].ids) for n in range(record.num_turns))
    side = {node.turn for root in world.session.tree.lineages()[1:] for node in root.turns}
    theirs = sum(len(world.session.tree.turns[n].ids) for n in side)
    assert record.counters["trained_tokens"] == sampled - theirs
    assert not any(row.num_trained for row in record.rows if row.lineage)
