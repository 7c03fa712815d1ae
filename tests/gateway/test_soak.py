"""Episodes with everything that goes wrong in them, and not one token otherwise: 1,600, always the
same; with ARL_EXHAUSTIVE=1 8,000."""

import random
from collections import Counter

import pytest
from families import FAMILIES
from wild import WILD
from worlds import KINDS, REPLIES, World

from tests.exhaustive import EXHAUSTIVE

NUM_EPISODES = 2000 if EXHAUSTIVE else 400
LETTERS = 'az 09é✓漢\U0001f600\n<"\\\\'
CAUSES = (
    *("forks_new_root", "forks_history_edit", "forks_args_edit", "forks_think_drop"),
    *("forks_template", "forks_seam", "forks_sibling", "forks_n_sibling"),
)


def _speaker(family, ends, chance):
    """Text to tokens; half of the time in pieces that the tokenizer would never make."""

    def speak(text):
        pieces = [text]
        if chance.random() < 0.5:
            end = next((end for end in ends if text.endswith(end)), "")
            body = text.removesuffix(end)
            pieces = [body[i : i + 3] for i in range(0, len(body), 3)] + [end]
        return [id for piece in pieces for id in family.tokenizer.encode(piece).ids]

    return speak


def _text(chance):
    return "".join(chance.choices(LETTERS, k=chance.randrange(8)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "glm", "chatml", "strict"])
def test_rows_are_the_engines_own_view_in_thousands_of_episodes(words, name):
    chance, family, total = random.Random(name), {**FAMILIES, **WILD}[name], Counter()
    ends = ("<|observation|>", "<|user|>") if name == "glm" else family.eos[:1] * 2
    for _ in range(NUM_EPISODES):
        replies = [(chance.choice(REPLIES), _text(chance)) for _ in range(5)]
        policies = {
            "thinking_history": chance.choice(["as_generated", "template"]),
            "edited_calls": chance.choice(["fork", "trust"]),
            "tool_parser": "hermes",
        }
        speak = _speaker(family, ends, chance)
        world = World(words, family.chat, speak, replies, ends=ends, **policies)
        for _ in range(chance.randrange(5)):
            kind = "go" if chance.random() < 0.6 else chance.choice(KINDS)
            world.step(kind, chance.randrange(100), _text(chance))
        record = world.scene.gateway.close_session(world.session)
        words.check_exact(record.rows, world.scene.engine.journal, num_rows=len(record.rows))
        total.update(record.counters | {"rows": len(record.rows), "turns": record.num_turns})
    print(name, {key: n for key, n in sorted(total.items()) if n})
    assert total["forks"] == sum(total[cause] for cause in CAUSES)
    assert total["forks"] == total["rows"] - NUM_EPISODES
    assert total["turns"] > 2 * NUM_EPISODES
    assert total["length_turns"]
    assert total["malformed_calls"]
