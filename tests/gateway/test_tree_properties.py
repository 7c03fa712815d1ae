"""Whatever clients do to a conversation, every sampled token trains in exactly one row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import REPLY, STEP, SYSTEMS, World


@settings(max_examples=20, deadline=None)
@given(
    replies=st.lists(REPLY, min_size=1, max_size=5),
    steps=st.lists(STEP, max_size=10),
    thinking=st.sampled_from(["as_generated", "template"]),
    edited=st.sampled_from(["fork", "trust"]),
)
@pytest.mark.slow
def test_every_sampled_token_trains_in_exactly_one_row(
    words, chat, spell, replies, steps, thinking, edited
):
    config = {"thinking_history": thinking, "edited_calls": edited, "canary_fraction": 1}
    world = World(words, chat, spell.bytewise, replies, **config)
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
    world = World(words, chat, spell.bytewise, replies, train_side_lineages=False)
    for step in [*steps, ("helper", 0, "")]:
        world.step(*step)
    record = world.scene.gateway.close_session(world.session)
    assert record.counters["side_turns"] > 0
    sampled = sum(len(world.session.tree.turns[n].ids) for n in range(record.num_turns))
    side = {
        node.turn for root in world.session.tree.lineages(["calculator"])[1:] for node in root.turns
    }
    theirs = sum(len(world.session.tree.turns[n].ids) for n in side)
    assert record.counters["trained_tokens"] == sampled - theirs
    assert not any(row.num_trained for row in record.rows if row.lineage)
