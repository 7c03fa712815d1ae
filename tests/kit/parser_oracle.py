"""vLLM's readings of the texts in parser_cases: requested, stored, compared with ours, and counted.

`python -m tests.kit.parser_oracle PYTHON` runs the vLLM of that interpreter, stores its readings in
vllm_parsers.json (values only), and writes the table of docs/parsers.md. Without PYTHON it writes
the table of what is stored. The oracle of gpt_oss needs o200k_base.tiktoken, which LiteLLM ships:
without it (ARL_TIKTOKEN, or LiteLLM beside the interpreter) its stored readings stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from arl_parsers.harmony import HarmonyParser

from agentgym_rl.core import in_order
from agentgym_rl.gateway import Reasoning, ToolCall, call_formats
from agentgym_rl.gateway.parsers import Parser
from agentgym_rl.gateway.parsers.think import ThinkParser, Thoughts
from tests.kit.call_formats import chat_of
from tests.kit.parser_cases import NAMED, ORACLES, THOUGHTS, TOOL, Case, well_formed

FORMATS, TAGS = call_formats(), in_order("thoughts", of=Thoughts)

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("vllm_parsers.json")
PAGE = ROOT / "docs" / "parsers.md"
CHILD = ROOT / "tests" / "vllm" / "parsers_child.py"
CASES: Sequence[Case] = list(dict.fromkeys([*NAMED, *well_formed(num=20, seed=0)]))
_O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"
_SHORT = 120
"""The length up to which a text is cut between any two tokens."""


def make(case: Case) -> Parser:
    """Return our parser for a case."""
    if case.name == "gpt_oss":
        return HarmonyParser([TOOL], "<|start|>assistant")
    parser = FORMATS[case.family]([TOOL])
    if not case.thinks:
        return parser
    _, opens, closes = THOUGHTS[case.name]
    prompt_end = {"opened": f"\n{opens}", "closed": f"\n{opens}{closes}"}.get(case.thinks, "\n")
    tags = TAGS[THOUGHTS[case.name][0]]
    return ThinkParser(parser, opened=tags.opened(prompt_end), thoughts=tags)


def ours(case: Case, *cuts: int) -> list[Any]:
    """Return [reasoning, content, [[name, arguments], …]], without whitespace at the ends."""
    parser, ends = make(case), [0, *cuts, len(case.text)]
    pieces = [case.text[start:end] for start, end in pairwise(ends)]
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish(ended=not case.cut)
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    content = "".join(event for event in events if isinstance(event, str))
    calls = [event for event in events if isinstance(event, ToolCall)]
    return [
        reasoning.strip(),
        content.strip(),
        [[call.name, MALFORMED if call.malformed else json.loads(call.arguments)]
         for call in calls],
    ]  # fmt: skip


MALFORMED = "malformed"


def same_form(theirs: Any) -> Any:
    """Return vLLM's reading in that form; an error stays as it is."""
    if isinstance(theirs, str):
        return theirs
    reasoning, content, calls = theirs
    calls = [[name, _arguments(arguments)] for name, arguments in calls]
    return [(reasoning or "").strip(), (content or "").strip(), calls]


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return MALFORMED


def _asked(case: Case) -> dict[str, Any]:
    tool_parser, reasoning_parser = ORACLES[case.name]
    reads_thoughts = case.thinks or case.name == "gpt_oss"
    return {
        "name": case.name,
        "tool_parser": tool_parser,
        "reasoning_parser": (reasoning_parser if reads_thoughts else None) or None,
        "thinking": case.thinks != "closed",
        "tools": [TOOL],
        "text": case.text,
        "cuts": len(case.text) <= _SHORT,
    }


def harmony_vocabulary(python: str) -> Path | None:
    """Return the file of the vocabulary of gpt-oss, if there is one here."""
    beside = Path(python).parents[2].glob(f".venv*/lib/python3*/site-packages/litellm/**/{_O200K}")
    return next(iter([*map(Path, filter(None, [os.environ.get("ARL_TIKTOKEN")])), *beside]), None)


def ask(python: str, *, timeout_s: float = 600.0) -> dict[str, Any]:
    """Return vLLM's readings by case, in the form of `same_form`; without gpt_oss if its vocabulary
    is missing."""
    vocabulary = harmony_vocabulary(python)
    cases = [case for case in CASES if case.name != "gpt_oss" or vocabulary]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        for name in ORACLES:
            if name != "gpt_oss":
                Path(folder, f"{name}.json").write_text(chat_of(name)._tokenizer.to_str())
        if vocabulary:
            shutil.copy(vocabulary, Path(folder, "o200k_base.tiktoken"))
            environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        done = subprocess.run(
            [python, str(CHILD), folder],
            input=json.dumps([_asked(case) for case in cases]),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environ,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {key(case): _answer(answer) for case, answer in zip(cases, answers, strict=True)}


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    whole, streamed = same_form(answer["whole"]), same_form(answer["streamed"])
    more = {} if streamed == whole else {"streamed": streamed}
    return {"whole": whole, **more, **({"cuts": answer["cuts"]} if answer["cuts"] else {})}


def key(case: Case) -> str:
    """Return the key of a stored reading."""
    return "\n".join((case.name, case.thinks, case.text))


def stored() -> dict[str, Any]:
    """Return the stored readings."""
    return json.loads(STORED.read_text())


BEGIN, END = "<!-- tests/kit/parser_oracle.py writes this table -->", "<!-- end -->"


def table(answers: Mapping[str, Any]) -> str:
    """Return the table of families, as Markdown."""
    lines = [
        "| family | vLLM's parsers | texts | alike | not, for a reason | vLLM's stream differs |",
        "|---|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for name, parsers in ORACLES.items():
        cases = {key(case): case for case in CASES if case.name == name}
        alike = sum(ours(case) == answers[text]["whole"] for text, case in cases.items())
        streams = sum(bool({"streamed", "cuts"} & set(answers[text])) for text in cases)
        why = Counter(case.differs for case in cases.values() if case.differs)
        listed = ", ".join(f"`{reason}` {count}" for reason, count in sorted(why.items()))
        named = ", ".join(f"`{parser}`" for parser in parsers if parser)
        lines.append(f"| {name} | {named} | {len(cases)} | {alike} | {listed} | {streams} |")
        total += Counter(texts=len(cases), alike=alike, why=sum(why.values()), streams=streams)
    counts = " | ".join(str(total[part]) for part in ("texts", "alike", "why", "streams"))
    return "\n".join([*lines, f"| all | | {counts} |"])


def page(text: str, answers: Mapping[str, Any]) -> str:
    """Return the text of the page with its table as it must be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(answers)}\n{END}{rest.partition(END)[2]}"


def main(python: str = "") -> None:
    if python:
        answers = (stored() if STORED.exists() else {}) | ask(python)
        known = {key(case): answers[key(case)] for case in CASES}
        rows = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in known.items())
        STORED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    PAGE.write_text(page(PAGE.read_text(), stored()))


if __name__ == "__main__":
    main(*sys.argv[1:])
