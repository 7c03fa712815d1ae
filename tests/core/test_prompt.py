"""Prompts that go on from one another."""

import json

from agentgym_rl.core import Prompt
from tests.kit.cases import cases


def _told(*pieces):
    prompt = None
    for ids in pieces:
        prompt = Prompt(ids, before=prompt)
    return prompt


@cases("pieces", [[[]], [[1]], [[], [2]], [[1, 2], [], [3]], [[], []], [[7, 8, 9], [10], [11, 12]]])
def test_a_prompt_is_the_ids_of_its_pieces(pieces):
    whole, prompt = [id for ids in pieces for id in ids], _told(*pieces)
    assert json.loads(prompt.json()) == list(prompt) == prompt.whole() == whole
    assert (len(prompt), prompt[1:]) == (len(whole), whole[1:])
    assert [prompt.tail(n) for n in range(4)] == [
        whole[len(whole) - n :] if n <= len(whole) else whole for n in range(4)
    ]


def test_prompts_that_part_are_written_each_for_itself():
    base = _told([1, 2], [3])
    left, right = Prompt([4], before=base), Prompt([5, 6], before=base)
    further = Prompt([7], before=left)
    for _ in range(2):
        assert json.loads(base.json()) == [1, 2, 3]
        assert json.loads(left.json()) == [1, 2, 3, 4]
        assert json.loads(further.json()) == [1, 2, 3, 4, 7]
        assert json.loads(right.json()) == [1, 2, 3, 5, 6]
        assert json.loads(left.json()) == [1, 2, 3, 4]
