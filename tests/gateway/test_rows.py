"""The rows of a token tree, token by token: what trains, where, and what is on no path."""

import numpy as np

from agentgym_rl.core import UNKNOWN_VERSION
from agentgym_rl.gateway.session.nodes import Sample, Sampled
from agentgym_rl.gateway.session.rows import export_rows, num_lost
from agentgym_rl.gateway.session.tree import Tree
from tests.kit.cases import cases

ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def sample(num: int, **changes) -> Sample:
    values = {
        "ids": list(range(50, 50 + num)),
        "logprobs": [-0.5] * num,
        "versions": [3] * num,
        "admitted": [2] * num,
        "times_s": [1.0 + i for i in range(num)],
        "temperature": 0.7,
    }
    return Sample(**values | changes)


def answer(
    tree: Tree, sampled: Sample, *, to=ASKED, fed: int = 2, base: Sampled | None = None
) -> Sampled:
    """Commit a turn, delivered, whose context adds `fed` tokens after those of `base`."""
    place = tree.locate(to)
    context = place.known or tree.extend(place, list(range(fed)), base=base)
    number = len(tree.turns)
    said = {"role": "assistant", "content": f"reply {number}"}
    node, _ = tree.commit(context, sampled, said, request=number)
    node.note_delivery()
    return node


def after(node: Sampled, text: str = "and?"):
    return [*ASKED, node.message, {"role": "user", "content": text}]


def rows_of(tree: Tree, **options):
    return export_rows(tree, tree.lineages(), **{"train": True} | options)


def test_a_row_has_each_token_once_with_what_the_engine_said():
    tree = Tree()
    first = answer(tree, sample(2))
    answer(tree, sample(1, temperature=1.0), to=after(first), fed=3, base=first)
    (row,) = rows_of(tree)
    assert row.tokens.tolist() == [0, 1, 50, 51, 0, 1, 2, 50]
    mask = [False, False, True, True, False, False, False, True]
    assert row.loss_mask.tolist() == mask
    assert row.behavior_logprobs.tolist() == [-0.5 * one for one in mask]
    assert row.policy_versions.tolist() == [3 if one else -1 for one in mask]
    assert row.admitted_versions.tolist() == [2 if one else -1 for one in mask]
    assert row.turn_ids.tolist() == [-1, -1, 0, 0, -1, -1, -1, 1]
    assert row.times_s.tolist() == [0, 0, 1, 2, 0, 0, 0, 1]
    np.testing.assert_allclose(row.temperatures, [0, 0, 0.7, 0.7, 0, 0, 0, 1.0])


def test_tokens_without_a_real_logprob_or_version_do_not_train():
    tree = Tree()
    logprobs = [-0.5, -9999.0, -9998.0, -9997.0, float("nan"), float("-inf"), -0.5]
    versions = [3] * 6 + [UNKNOWN_VERSION]
    answer(tree, sample(7, logprobs=logprobs, versions=versions), fed=1)
    (row,) = rows_of(tree)
    assert row.loss_mask.tolist() == [False, True, False, False, True, False, False, False]
    assert row.behavior_logprobs.tolist() == [0, -0.5, 0, 0, -9997.0, 0, 0, -0.5]


@cases("changes", [{"temperature": 0.0}, {"constrained": True}])
def test_turns_that_are_not_drawn_from_the_policy_do_not_train(changes):
    tree = Tree()
    first = answer(tree, sample(2, **changes))
    answer(tree, sample(1), to=after(first), base=first)
    (row,) = rows_of(tree)
    assert row.loss_mask.tolist() == [False] * 6 + [True]
    (untrained,) = rows_of(tree, train=False)
    assert not untrained.loss_mask.any()


def test_a_turn_of_several_paths_trains_in_the_longest_of_them():
    for lengths, owner in (((1, 4), 1), ((4, 1), 0), ((2, 2), 0)):
        tree = Tree()
        first = answer(tree, sample(2))
        for text, length in zip(("one", "two"), lengths, strict=True):
            answer(tree, sample(length), to=after(first, text), base=first)
        rows = rows_of(tree)
        assert [bool(row.loss_mask[2]) for row in rows] == [owner == 0, owner == 1]
        assert sum(row.num_trained for row in rows) == 2 + sum(lengths)


def test_a_helper_is_a_lineage_of_its_own_which_may_be_left_out():
    tree = Tree()
    answer(tree, sample(1))
    answer(tree, sample(2), to=[{"role": "system", "content": "help"}, ASKED[1]])
    assert [(row.lineage, row.num_trained) for row in rows_of(tree)] == [(0, 1), (1, 2)]
    main, helper = rows_of(tree, train_side_lineages=False)
    assert (main.num_trained, helper.num_trained) == (1, 0)


SUMMARY = "We know by now that three times four is twelve.\nWhat is left is to add five."


def test_a_row_knows_the_row_it_branches_off_from_or_whose_summary_it_begins_with():
    tree = Tree()
    first = answer(tree, sample(2))
    second = answer(tree, sample(2), to=after(first), base=first)
    talk = [*after(first), second.message]
    answer(tree, sample(9), to=[*talk, {"role": "user", "content": "one"}], base=second)
    answer(tree, sample(1), to=[*talk, {"role": "user", "content": "two"}], base=second)
    answer(tree, sample(1), to=after(first, "other"), base=first)
    assert [row.parent for row in rows_of(tree)] == [-1, 0, 0]
    answer(tree, sample(1), to=[{"role": "system", "content": "help"}, ASKED[1]])
    assert [row.parent for row in rows_of(tree)] == [-1, 0, 0, -1]


def test_a_summary_is_the_turn_before_what_it_takes_the_place_of():
    tree = Tree()
    first = answer(tree, sample(2))
    said = {"role": "assistant", "content": f"<analysis>short</analysis>\n{SUMMARY}"}
    place = tree.locate(after(first, "Sum up."))
    context = tree.extend(place, [1, 2], base=first)
    summary, _ = tree.commit(context, sample(4), said, request=1)
    summary.note_delivery()
    for text, cause in (
        (f"So far:\n{SUMMARY}\nGo on.", "summary"),
        (f"So far:\n{SUMMARY[:20]}\nGo on.", "history_edit"),
    ):
        place = tree.locate([ASKED[0], {"role": "user", "content": text}])
        context = tree.extend(place, [7, 8], base=None)
        node, found = tree.commit(context, sample(1), {"role": "assistant"}, request=len(text))
        node.note_delivery()
        assert (found, node.parent) == (cause, summary if cause == "summary" else None)
    assert [row.parent for row in rows_of(tree)] == [-1, 0, -1]


def test_a_reply_that_nobody_got_is_on_no_path_unless_a_turn_continues_it():
    tree = Tree()
    lost, first = answer(tree, sample(3)), answer(tree, sample(2))
    lost.delivered = first.delivered = False
    assert (rows_of(tree), num_lost(tree)) == ([], 2)
    answer(tree, sample(1), to=after(first), base=first)
    (row,) = rows_of(tree)
    assert (row.num_trained, num_lost(tree)) == (3, 1)
