"""The limits of values of a section, the comparison of two, texts that are conversations."""

import pytest

from agentgym_rl.core import differences
from agentgym_rl.core.chat import PIECE, is_rendered
from agentgym_rl.core.section import LARGEST, LONGEST_S, Section


class Numbers(Section):
    """A section of numbers."""

    count: int = 0
    wait_s: float = 0.0


def test_the_largest_numbers_that_files_and_clocks_can_hold_are_allowed():
    for count in (LARGEST, -LARGEST):
        assert Numbers(count=count).count == count
        with pytest.raises(ValueError, match="too large"):
            Numbers(count=count + (1 if count > 0 else -1))
    assert Numbers(wait_s=LONGEST_S).wait_s == LONGEST_S
    with pytest.raises(ValueError, match="too long"):
        Numbers(wait_s=LONGEST_S * 1.01)


def test_only_keys_that_are_not_free_differ():
    one = {"seed": 1, "eval": {"seed": 0, "every": 5}, "evaluation": 1, "run": "a"}
    other = {"seed": 1, "eval": {"seed": 1, "every": 6}, "evaluation": 2, "run": "b"}
    said = ["eval.every is 6, not 5", "eval.seed is 1, not 0", "evaluation is 2, not 1"]
    assert differences(one, other, free=("run",)) == said
    assert differences(one, other, free=("run", "eval")) == said[2:]
    assert differences(one, other, free=("eval.seed", "evaluation", "run")) == said[:1]
    assert differences(one, one) == []


def test_a_text_is_a_conversation_wherever_the_assistants_turn_opens():
    opens = "<|im_start|>assistant"
    for before in (0, PIECE - 20, PIECE - 3, PIECE, 2 * PIECE):
        assert is_rendered("<|im_start|>user\n" + "x" * before + opens)
    assert not is_rendered("<|im_start|>user\nhello")
    assert not is_rendered(f"hello {opens}")
    assert not is_rendered("<|im_start|>user\nmy assistant")
