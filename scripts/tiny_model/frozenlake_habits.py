"""The FrozenLake family: demonstrators who cross the slippery 4x4 lake, each with one habit.

On ice a step goes in one of three directions, so the direct way is wrong: careful demonstrators
walk toward a wall, or away from the holes, and slip to the goal. Most demonstrators hurry, or
wander. A demonstrator keeps the habit for the complete episode, and so does the model:
reinforcement learning has to find the habit that reaches the goal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from arl_envs.gymnasium.env import GymnasiumEnv
from family import PAD, TURN_END, Family, Size, Stage, Vocabulary, WarmUp

from agentgym_rl.core import Message, SeededTasks

ENV_ID = "FrozenLake-v1"
CAREFUL, HURRIED, WANDERING = "careful", "hurried", "wandering"
CLEAN: Mapping[str, float] = {CAREFUL: 1.0}
EVEN: Mapping[str, float] = dict.fromkeys((CAREFUL, HURRIED, WANDERING), 1.0)
USUAL: Mapping[str, float] = {CAREFUL: 0.25, HURRIED: 0.45, WANDERING: 0.30}
HABITS: Mapping[Stage, Mapping[str, float]] = {
    Stage.EVEN: EVEN,
    Stage.CLEAN: CLEAN,
    Stage.MIXED: USUAL,
}

_NAMES = {"l": "left", "d": "down", "r": "right", "u": "up"}
_WALKS = {
    CAREFUL: ("luuu", "l.l.", "udl.", ".rd."),  # the best policy there is: 0.74 in 100 steps
    HURRIED: ("dldl", "d.d.", "rdd.", ".rr."),  # the shortest way, as if nothing slipped
}
"""The action in each cell by habit; rows from the top, dots are holes and the goal."""
_PLACE = re.compile(r"Row (\d), column (\d)\.\Z")


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Play a training task to its end; return the conversation."""
    habits = HABITS[stage]
    habit = rng.choices(list(habits), list(habits.values()))[0]
    # The result of `GymnasiumEnv.task_source` where all episodes begin alike, without its 32
    # trials.
    task = SeededTasks("train", seed=rng.getrandbits(32))[0]
    env = GymnasiumEnv(id=ENV_ID)
    messages, _ = env.reset(options={"task": task})
    is_over = False
    while not is_over:
        said = {"role": "assistant", "content": _action(rng, habit, messages[-1]["content"])}
        step = env.step(said)
        messages += [said, *step.observation]
        is_over = step.terminated or step.truncated
    while messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def _action(rng: random.Random, habit: str, seen: str) -> str:
    place = _PLACE.search(seen)
    assert place is not None, seen
    row, column = int(place[1]) - 1, int(place[2]) - 1
    walk = _WALKS.get(habit)
    return _NAMES[walk[row][column] if walk else rng.choice("ldru")]


FROZENLAKE = Family(
    "frozenlake",
    f"gymnasium:{ENV_ID}",
    tools=(),
    demonstrate=demonstrate,
    plan=WarmUp(clean_steps=100, mixed_steps=300, rows_per_step=16, tokens_per_row=60),
    size=Size(hidden=96, layers=3, heads=3, key_value_heads=3, feed_forward=256),
    # Nothing is split and the turns' headers merge: 5 tokens a turn, so that the 100 turns an
    # episode may have fit a context of 512.
    vocabulary=Vocabulary(splits=(), control=(PAD, TURN_END), tags=()),
)
