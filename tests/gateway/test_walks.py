"""The walks of a session: which conversation begins with one, and which of them are kept."""

from agentgym_rl.gateway.session.nodes import Root
from agentgym_rl.gateway.session.tree import Walk, Walks

TOOLS, KWARGS, ROOT = [], {}, Root()
A, B, C = ({"role": "user", "content": text} for text in "abc")


def walk(*said) -> Walk:
    return Walk(TOOLS, KWARGS, said, said, ROOT, ROOT, 0)


def test_a_conversation_begins_with_the_very_messages_of_a_walk():
    begun = walk(A, B)
    for said in ([A, B], [A, B, C]):
        assert begun.begins(said, TOOLS, KWARGS)
    for said in ([A], [A, C], [A, dict(B)], [C, B, A]):
        assert not begun.begins(said, TOOLS, KWARGS)
    assert not begun.begins([A, B], [], KWARGS)
    assert not begun.begins([A, B], TOOLS, {})


def test_a_longer_walk_replaces_its_beginning_and_no_other():
    walks, first, other, longer = Walks(), walk(A), walk(C), walk(A, B)
    for kept in (first, other):
        walks.keep(kept, kept)
    walks.keep(first, longer)
    found = [walks.longest(said, TOOLS, KWARGS) for said in ([A], [A, B], [C])]
    assert found == [None, longer, other]
