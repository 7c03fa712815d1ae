"""Going on from where a conversation was found before leads where following all of it leads."""

import asyncio
import random

from worlds import KINDS, REPLIES, World

from agentgym_rl.gateway.session.tree import Tree, Walks


class WatchedTree(Tree):
    """Follows every conversation from the top too, and compares."""

    num_short = 0
    """Messages that need not have been followed."""

    def locate(self, messages, *, tools=None, template_kwargs=None):
        given = {"tools": tools, "template_kwargs": template_kwargs}
        walk = self._walks.longest(messages, tools, template_kwargs)
        self.num_short += len(walk.sent) if walk else 0
        place = super().locate(messages, **given)
        kept, self._walks = self._walks, Walks()
        anew = super().locate(messages, **given)
        self._walks = kept
        assert place.root is anew.root
        assert place.anchor is anew.anchor
        for name in ("messages", "tail", "tail_keys", "edited", "guessed", "trusted"):
            assert getattr(place, name) == getattr(anew, name), name
        return place


def test_walks_lead_where_following_everything_leads(words, chat, spell, monkeypatch):
    monkeypatch.setattr("agentgym_rl.gateway.session.session.Tree", WatchedTree)
    chance, num_short = random.Random(3), 0
    for edited in ["fork", "trust"] * 3:
        replies = [(chance.choice(REPLIES), str(number)) for number in range(5)]
        world = World(words, chat, spell.bytewise, replies, edited_calls=edited)
        for _ in range(8):
            kind = "go" if chance.random() < 0.7 else chance.choice(KINDS)
            world.step(kind, -1 - chance.randrange(3), str(chance.randrange(9)))
        num_short += world.session.tree.num_short
    assert num_short > 30


def test_a_second_reply_is_never_walked_past(stage, spell, words):
    """The client asks again, gets the same words, and goes on from either."""
    scene = stage([spell.bytewise("Yes." + words.END)] * 6)
    session = scene.open()
    session.tree = tree = WatchedTree()
    messages = [{"role": "user", "content": "Is it?"}]
    for _ in range(2):
        sent = asyncio.run(scene.post(session, messages=messages)).message
        messages = [*messages, sent, {"role": "user", "content": "Sure?"}]
    assert tree.num_short == 0
    asyncio.run(scene.post(session, messages=messages))
    assert tree.num_short == 2
    asyncio.run(scene.post(session, messages=messages[:1]))
    asyncio.run(scene.post(session, messages=messages))
    assert tree.num_short == 2
    assert session.counters["forks_sibling"] == 2
