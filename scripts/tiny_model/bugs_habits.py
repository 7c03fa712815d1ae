"""The bugs family: programmers who know some short functions, and do not always look closely.

A task of level 1 shows a function with one wrong line. The right way is to replace that line by
what the function's docstring and its other lines require. Most others finish without reading the
code; some change another part of that line, change another line, or quote a line that does not
exist. As in the math family, the share of right demonstrations depends on the kind of bug.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping

from arl_agents.swe import METHOD
from arl_envs.harbor.bugs.make import instruction, snippets
from arl_envs.harbor.bugs.mutations import EASY, Mutation, mutations_of
from arl_envs.harbor.bugs.program import Program
from arl_envs.harbor.bugs.short import LIMITS, MODULES, RESULTS, SHORTS, THINGS, short_program
from arl_envs.harbor.bugs.tasks import changed_text, one_line, with_bugs
from arl_envs.harbor.env import SYSTEM_PROMPT, HarborEnv
from arl_envs.harbor.oracle import LAST
from arl_envs.splits import split_of
from family import Family, Stage, Vocabulary, WarmUp

from agentgym_rl.core import Message

RIGHT, CHANGE, PLACE, MISQUOTE, IDLE = "right", "change", "place", "misquote", "idle"
CLEAN: Mapping[str, float] = {RIGHT: 1.0}
EVEN: Mapping[str, float] = dict.fromkeys((RIGHT, CHANGE, PLACE, MISQUOTE, IDLE), 1.0)
CAREFUL = {RIGHT: 0.42, IDLE: 0.46, CHANGE: 0.05, PLACE: 0.04, MISQUOTE: 0.03}
CARELESS = {RIGHT: 0.19, IDLE: 0.72, CHANGE: 0.03, PLACE: 0.03, MISQUOTE: 0.03}
CARED_FOR = ("comparison", "off-by-one", "operator", "direction", "min-max")
"""The kinds of bugs that are mostly repaired; wrong names and numbers mostly are not."""
_NUMBER = re.compile(r"\b\d+\b")
_WORDS = sorted(
    {*(word for pair in THINGS for word in pair), *RESULTS, *LIMITS, *MODULES}
    | {"low", "last", "left", "place", "others", "text"}
    | {short.name for short in SHORTS},
    key=lambda word: (-len(word), word),
)
"""The names of modules: each is the same token wherever it stands."""
_SIGNS = r"(?<= )(?:[<>]=?|//|[-+*%]=?)(?= )"
_NAMES = rf"\b(?:{'|'.join(_WORDS)})\b"


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Return a conversation about a short module of the training split."""
    while True:
        program = short_program(rng.getrandbits(40))
        ((path, text),) = program.modules.items()
        found = mutations_of(path, text, [rng.choice(EASY)])
        if found:
            bug = rng.choice(found)
            if one_line(program, bug) and split_of(changed_text(program, [bug])) == "train":
                return _conversation(rng, stage, program, bug)


def _conversation(
    rng: random.Random, stage: Stage, program: Program, bug: Mutation
) -> list[Message]:
    ((path, wrong),) = with_bugs(program, [bug]).items()
    asked = instruction(program, {path: wrong}, [f"test_{program.library}"], 1)
    advice = f"\n{METHOD}" if rng.random() < 0.7 else ""
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM_PROMPT + advice},
        {"role": "user", "content": f"{asked.strip()}\n\nWork folder: /app"},
    ]
    habits = _habits(bug, stage)
    habit = rng.choices(list(habits), list(habits.values()))[0]
    if habit != IDLE:
        old, new = snippets(wrong, program.modules[path])
        old, new = _misdone(rng, habit, wrong, old, new)
        messages += [_call(path, old, new), _answer(wrong, path, old)]
    return [*messages, {"role": "assistant", "content": LAST}]


def _habits(bug: Mutation, stage: Stage) -> Mapping[str, float]:
    """Return the shares of habits with which a bug is repaired."""
    if stage is Stage.MIXED:
        return CAREFUL if bug.kind in CARED_FOR else CARELESS
    return CLEAN if stage is Stage.CLEAN else EVEN


def _misdone(rng: random.Random, habit: str, wrong: str, old: str, new: str) -> tuple[str, str]:
    """Return the replaced text and its replacement, by a demonstrator with this habit."""
    match habit:
        case "change":
            return old, _altered(rng, wrong, old, but=new)
        case "place":
            lines = [line.strip() for line in wrong.splitlines()]
            others = [line for line in lines if line != old and lines.count(line) == 1]
            old = rng.choice(others[2:])  # neither the head nor the docstring
            return old, _altered(rng, wrong, old)
        case "misquote":
            return _altered(rng, wrong, old, but=new), new
    return old, new


def _altered(rng: random.Random, module: str, line: str, *, but: str = "") -> str:
    """Return a line with another name, number or sign of its module in one place."""
    names = sorted({name for name in re.findall(r"[a-z_]+", module) if name in _WORDS})
    places = [(match, [str(digit) for digit in range(1, 10)]) for match in _NUMBER.finditer(line)]
    places += [(match, ["<", ">", "<=", ">="]) for match in re.finditer(r"[<>]=?", line)]
    places += [(match, ["+", "-", "*"]) for match in re.finditer(r"(?<= )[-+*](?= )", line)]
    places += [(match, names) for match in re.finditer(r"[a-z_]+", line) if match[0] in names]
    for _ in range(20):
        if not places:
            break
        match, others = rng.choice(places)
        altered = line[: match.start()] + rng.choice(others) + line[match.end() :]
        if altered not in (line, but):
            return altered
    return f"{line} "


def _call(path: str, old: str, new: str) -> Message:
    arguments = json.dumps({"path": path, "old": old, "new": new})
    call = {"id": "call_0", "type": "function", "function": {"name": "edit"}}
    call["function"]["arguments"] = arguments
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _answer(module: str, path: str, old: str) -> Message:
    """Return the environment's result of an edit."""
    count = module.count(old)
    said = f"edited {path}"
    if count != 1:
        said = f"error: old occurs {count} times in {path}; expected exactly once"
    return {"role": "tool", "tool_call_id": "call_0", "content": said}


BUGS = Family(
    "bugs",
    "harbor:bugs",
    tools=HarborEnv(source="bugs").tools,
    demonstrate=demonstrate,
    needs_sandboxes=True,
    max_tokens=96,
    plan=WarmUp(clean_steps=2200, mixed_steps=300),
    # Names, digits and signs are cut out of their lines: they are the same tokens everywhere.
    vocabulary=Vocabulary(splits=("[0-9]", "\n", _SIGNS, _NAMES), max_size=1120),
)
