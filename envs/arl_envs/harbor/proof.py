"""The terms on which a foreign task is verified, found with its own solution.

The strictest terms come first: files that could be the answer of a task as well as a trick are left
out, and Python does not look for modules in the work folder where no program of it is run. If the
solution gets no full reward on these terms, weaker terms are tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from .hooks import relative_to
from .verdict import VerifierResult

_PROGRAM = re.compile(r"[\w./-]+\.(?:py|pyz|pyc|sh|bash|js|mjs|cjs|ts|pl|pm|rb|php|lua|R)\b")
_SEARCHES = re.compile(
    r"\*\.\w|\bglob|listdir|scandir|iterdir|os\.walk|discover|-m\s*pytest|-exec|xargs|\beval\b|"
    r"importlib|__import__|runpy|\bexec\(|pkgutil"
)
"""The words in tests that may run files that they find in a folder, or files whose names they
compute."""
_IMPORT = re.compile(r"(?m)^\s*(?:from|import)\s+(\w+)")
_RUN = re.compile(r"\s-m\s*(\w+)")
_WORD = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class Terms:
    """The files that a verification takes over, and the way it starts Python."""

    needed: frozenset[str] = frozenset()
    """The doubtful files that are taken over."""
    is_isolated: bool = True
    """Whether Python does not look for modules in the work folder, where the tests run no program
    of it."""
    problem: str = ""
    """The reason why not even the solution gets its reward; "" if it does."""


async def terms_of_solution(
    grade: Callable[[Terms], Awaitable[VerifierResult]],
    first: Terms,
    *,
    must_pay: bool,
    full: float,
    is_unpaid: Callable[[VerifierResult], bool],
) -> Terms:
    """Return the strictest terms on which the solution gets its best reward.

    Args:
        grade: Verifies the solution's files on some terms.
        must_pay: Whether the solution exists, so that a solution without a reward is a problem.
        full: The full reward.
        is_unpaid: Whether a reward is one that tests also give if they cannot work.
    """
    best = verdict = await grade(first)
    terms = first
    needed = frozenset(path for path, why in verdict.dropped.items() if why.is_doubtful)
    weaker = [replace(first, needed=needed)] if needed else []
    if verdict.is_isolated:
        weaker.append(Terms(needed, is_isolated=False))
    for each in weaker if must_pay else ():
        if best.reward >= full:
            break
        verdict = await grade(each)
        if (verdict.has_reward, verdict.reward) > (best.has_reward, best.reward):
            best, terms = verdict, each
    sound = best.has_reward and (not is_unpaid(best) or not must_pay)
    return terms if sound else replace(terms, problem=_problem(best))


def _problem(verdict: VerifierResult) -> str:
    certain = [f"{path} ({why.text})" for path, why in sorted(verdict.dropped.items())]
    left_out = ", ".join(certain[:5])
    hint = f"; left out: {left_out} (metadata.arl_keep takes such files over)" if certain else ""
    return f"{verdict.status}: {verdict.detail}{hint}"


def runs_programs(
    tests: Mapping[str, bytes], image: Mapping[str, int], modules: Collection[str], work_dir: str
) -> bool:
    """Return whether tests may run a program of the work folder: they name one, import a module
    that is not installed, or look through folders. The agent has no influence on this.

    Args:
        image: The modes of the image's files in the work folder, by path.
        modules: The modules that are installed, and those of the tests.
    """
    text = b"\n".join(tests.values()).decode("utf-8", "replace")
    own = {PurePosixPath(path).name for path in tests}
    if _SEARCHES.search(text):
        return True
    if any(PurePosixPath(path).name not in own for path in _PROGRAM.findall(text)):
        return True
    if re.search(rf"(?:\./|{re.escape(work_dir)}/)[\w-]+(?![\w./-])", text):
        return True
    known = sys.stdlib_module_names | set(modules) | {name.partition(".")[0] for name in own}
    if any(name not in known for name in [*_IMPORT.findall(text), *_RUN.findall(text)]):
        return True
    words = {word.lower() for word in _WORD.findall(text)}
    programs = [path for path, mode in image.items() if mode & 0o111 or _PROGRAM.fullmatch(path)]
    return any(not words.isdisjoint(_words_of(path)) for path in programs)


def _words_of(path: str) -> Collection[str]:
    return {part.partition(".")[0].lower() for part in PurePosixPath(path).parts}


def isolated_env(env: Mapping[str, str], work_dir: str, tests: str) -> dict[str, str]:
    """Return the variables with which Python looks for no module in the work folder: neither in the
    current folder nor by PYTHONPATH. Scripts of the tests find each other nevertheless."""
    path = [each for each in env.get("PYTHONPATH", "").split(":") if each]
    outside = [each for each in path if relative_to(work_dir, each) is None]
    return {
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": ":".join([tests, *outside]),
    }
