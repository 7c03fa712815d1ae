"""The endless tasks with planted bugs: each is a variant of a program with changes."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

from agentgym_rl import EnvError
from arl_envs.harbor.own import OwnTasks
from arl_envs.splits import split_of

from .catalog import LIBRARIES
from .library import library_program
from .mutations import EASY, KINDS, Mutation, mutations_of
from .program import Endless, Program, differing
from .short import short_program

LEVELS = (1, 2, 3, 4)
SHORT = "short"
"""The name of the short modules among the libraries."""
TRIES = 2_000
NUM_BUGS = {1: 1, 2: 1, 3: 2, 4: 1}


class BugTasks(OwnTasks):
    """The tasks with bugs: a program with its bugs belongs to one split, for any seed."""

    kind, levels = "bugs", LEVELS

    def _drawn(self, rng: random.Random, index: int) -> dict[str, Any]:
        for _ in range(TRIES):
            library, variant = drawn_program(rng, self._level)
            program = program_of(library, variant)
            bugs = drawn_bugs(rng, program, self._level)
            split = split_of(changed_text(program, bugs)) if bugs else None
            if split == self._split and are_detected(program, bugs, self._level):
                places = [[bug.kind, bug.path, bug.start, bug.end, bug.new] for bug in bugs]
                return {"library": library, "variant": variant, "bugs": places}
        raise EnvError(f"no program with a bug was found for task {index} in {TRIES} tries")


def bugs_of(data: Any) -> tuple[Program, tuple[Mutation, ...]]:
    """Return the program of a task, and its bugs.

    Raises:
        EnvError: the data does not come from this generator.
    """
    try:
        program = program_of(data["library"], data["variant"])
        bugs = tuple(Mutation(*bug) for bug in data["bugs"])
        known = all(
            bug in mutations_of(bug.path, program.modules[bug.path], [bug.kind]) for bug in bugs
        )
        if not known or data["level"] not in LEVELS or len(bugs) != NUM_BUGS[data["level"]]:
            raise ValueError("a bug or level that is not of this program")
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(f"the task's data is no output of the generator bugs: {error!r}") from error
    return program, bugs


@functools.lru_cache(maxsize=512)
def program_of(library: str, variant: int) -> Program:
    """Return a variant of a library, right and with its cases."""
    if library == SHORT:
        return short_program(variant)
    return library_program(LIBRARIES[library], variant)


def drawn_program(rng: random.Random, level: int) -> tuple[str, int]:
    """Return the name of a library for a level, and the number of a variant."""
    if level == 1:
        return SHORT, rng.getrandbits(40)
    return rng.choice(list(LIBRARIES)), rng.getrandbits(20)


def changed_text(program: Program, bugs: Sequence[Mutation]) -> str:
    """Return the text by whose hash the split is chosen: the changed files with their bugs."""
    return "\n".join(f"{path}:\n{text}" for path, text in sorted(with_bugs(program, bugs).items()))


def with_bugs(program: Program, bugs: Sequence[Mutation]) -> dict[str, str]:
    """Return the changed files; bugs of one file do not overlap."""
    texts: dict[str, str] = {}
    for bug in sorted(bugs, key=lambda one: one.start, reverse=True):
        texts[bug.path] = bug.applied(texts.get(bug.path, program.modules[bug.path]))
    return texts


def drawn_bugs(rng: random.Random, program: Program, level: int) -> tuple[Mutation, ...]:
    """Return bugs on different lines; nothing if the program has none of the kinds drawn."""
    bugs: list[Mutation] = []
    for _ in range(NUM_BUGS[level]):
        kind = rng.choice(EASY if level == 1 else list(KINDS))
        of_kind = [
            bug
            for path, text in program.modules.items()
            for bug in mutations_of(path, text, [kind])
        ]
        if not of_kind:
            return ()
        bugs.append(rng.choice(of_kind))
    if not _apart(program, bugs) or (level == 1 and not one_line(program, bugs[0])):
        return ()
    return tuple(bugs)


def _apart(program: Program, bugs: Sequence[Mutation]) -> bool:
    """Return whether no two bugs are on one line."""
    places = {(bug.path, program.modules[bug.path].count("\n", 0, bug.start)) for bug in bugs}
    return len(places) == len(bugs)


def one_line(program: Program, bug: Mutation) -> bool:
    """Return whether the wrong line occurs once in its file, so that an edit can name it."""
    text = bug.applied(program.modules[bug.path])
    line = text[: bug.start + len(bug.new)].rpartition("\n")[2]
    line += text[bug.start + len(bug.new) :].partition("\n")[0]
    return text.count(line.strip()) == 1


def are_detected(program: Program, bugs: Sequence[Mutation], level: int) -> bool:
    """Return whether the hidden cases detect each bug alone and all together, and every case ends.

    The visible tests detect them too, except at level 4, which leaves out the tests that would.
    """
    try:
        return _are_detected(program, bugs, level)
    except (Endless, SyntaxError, NameError):
        return False


def _are_detected(program: Program, bugs: Sequence[Mutation], level: int) -> bool:
    right = program.modules
    for some in [[bug] for bug in bugs] + ([list(bugs)] if len(bugs) > 1 else []):
        wrong = {**right, **with_bugs(program, some)}
        if not differing(right, wrong, program.hidden):
            return False
    wrong = {**right, **with_bugs(program, bugs)}
    failing = [name for name, cases in program.shown.items() if differing(right, wrong, cases)]
    return bool(failing) if level < 4 else len(failing) < len(program.shown)
