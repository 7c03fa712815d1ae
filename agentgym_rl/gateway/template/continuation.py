"""The text after a reply as the template writes it, cut out of a rendered conversation.

    by_sentinel   renders only a stand-in for the reply and the new messages
    by_count      renders the complete conversation and counts ends of turns up to the reply

Either way the tail begins at or directly after an added token, where tokenizers never merge, so its
tokens can be appended to the sampled ones.

The two are the first rungs of a ladder, `sentinel` and `eos_count`; on the last, `full`, every turn
is rendered anew. A few conversations rendered at start-up show how a template writes turns
(`Shape`). Each model gets the first rung that all these probes confirm.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from agentgym_rl.gateway.messages import text_of

from .steps import EndlessTemplate
from .template import OPENING, SENTINEL

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
Render = Callable[..., str]
"""A function (messages, tools, add_generation_prompt=True) that raises ValueError on refusal."""
Rung = Literal["sentinel", "eos_count", "full"]
Encode = Callable[[str], list[int]]

_BEGUN = "\ue004begun\ue005"
"""A mark at the end of a message that is to be continued; the rendering is cut there."""


@dataclass(frozen=True)
class TurnEnd:
    """The added tokens at the end of an assistant's turn.

    Most templates close a turn with a token of its own. Other templates end a turn at the next
    opening token, which names the next role (`opens`); models sample that token to stop.
    """

    texts: tuple[str, ...]
    opens: bool = False
    calls: str = ""
    """The last of `texts`, if it ends only turns with calls: their results stand in the same turn
    (Gemma 4)."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern that matches any of the tokens."""
        longest_first = sorted(self.texts, key=len, reverse=True)
        return re.compile("|".join(re.escape(text) for text in longest_first))

    def tail(self, text: str, match: re.Match[str]) -> str:
        """Return the text after a turn that ends with `match`; an opening token is part of it."""
        return text[match.start() if self.opens else match.end() :]


def by_sentinel(
    render: Render, end: TurnEnd, reply: Mapping[str, Any], new: Messages, tools: Tools
) -> str:
    """Return the text after `reply` if `new` follows. Only the names of its calls matter.

    Raises:
        ValueError: the template refuses these messages, or does not show the reply in its place.
    """
    said: dict[str, Any] = {"role": "assistant", "content": SENTINEL}
    if reply.get("tool_calls"):
        said["tool_calls"] = [_stand_in(call, end) for call in reply["tool_calls"]]
        if end.calls:
            if reply.get("content"):
                raise ValueError("this chat template writes such a text behind results")
            said["content"] = ""
    rendered = render([OPENING, said, *new], tools)
    at = rendered.rfind(SENTINEL)
    match = end.pattern.search(rendered, at) if at >= 0 else None
    if match is None:
        raise ValueError("this chat template does not end assistant turns")
    return end.tail(rendered, match)


def by_count(render: Render, end: TurnEnd, messages: Messages, num_new: int, tools: Tools) -> str:
    """Return the text after the last reply, which precedes the last `num_new` messages.

    Raises:
        ValueError: the template refuses these messages, or the reply's end is not found.
    """
    said = messages[: len(messages) - num_new]
    count = len(end.pattern.findall(render(said, tools, add_generation_prompt=False)))
    whole = render(messages, tools)
    ends = list(end.pattern.finditer(whole))
    index = count if end.opens else count - 1
    if not 0 <= index < len(ends):
        raise ValueError("this chat template does not end assistant turns")
    return end.tail(whole, ends[index])


def up_to(begun: Mapping[str, Any], render: Render) -> Render:
    """Return a function that renders a conversation and the beginning `begun` of its next message,
    where `render` would end with the opening of that message."""
    marked = {**begun, "content": text_of(begun.get("content")) + _BEGUN}

    def rendered(messages: Messages, tools: Tools, add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            return render(messages, tools, add_generation_prompt=False)
        whole = render([*messages, marked], tools, add_generation_prompt=False)
        text, mark, _ = whole.rpartition(_BEGUN)
        if not mark:
            raise ValueError("this chat template does not show the message to be continued")
        return text

    return rendered


def _stand_in(call: Mapping[str, Any], end: TurnEnd) -> dict[str, Any]:
    """Return a call with the sentinel inside: some templates show only the calls of such a turn."""
    name = end.pattern.sub("", call["function"]["name"])  # models may use any name
    function = {"name": name, "arguments": f'{{"said": "{SENTINEL}"}}'}
    return {"id": call.get("id"), "type": "function", "function": function}


@dataclass(frozen=True)
class Shape:
    """The way one template, with one set of template arguments, writes conversations."""

    end: TurnEnd | None
    """The end of an assistant turn; None if the text does not show it."""
    rungs: tuple[Rung, ...] = ()
    """The rungs that all probes confirm, best first; `full` is always possible."""
    why: str = ""
    """The reason why the rungs above the first of `rungs` fail; empty if that is the top one."""
    edits: bool = False
    """Whether a continuation may also hold assistant messages that a client rewrote."""
    tools_in_tail: bool = True
    """Whether the text after a reply depends on the offered tools; else they are omitted."""
    drops_opening: bool = False
    """Whether a turn's opening changes after another user message: an empty thought vanishes, for
    example."""

    @property
    def known_end(self) -> TurnEnd:
        """Return the end of an assistant turn.

        Raises:
            ValueError: the text does not show it.
        """
        if self.end is None:
            raise ValueError("this chat template does not end assistant turns")
        return self.end

    @property
    def rung(self) -> Rung:
        """Return the rung on which a continuation is tried first."""
        return self.rungs[0] if self.rungs else "full"


@dataclass(frozen=True)
class Probe:
    """A conversation: messages before a reply, the reply, new messages, and the tools offered."""

    name: str
    before: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    new: Sequence[Mapping[str, Any]]
    tools: Tools = None

    @property
    def whole(self) -> list[Mapping[str, Any]]:
        return [*self.before, self.reply, *self.new]


def find_shape(render: Render, encode: Encode, added: Mapping[str, int]) -> Shape:
    """Probe a template. `added`: the tokenizer's added tokens, text to id.

    A conversation that the template refuses (with tools, for a template without them) is skipped; a
    plain one must work.

    Raises:
        EndlessTemplate: the rendering of a probe does not end.
    """
    with _ending(render) as ending:
        return _shape(ending, encode, added)


def _shape(render: Render, encode: Encode, added: Mapping[str, int]) -> Shape:
    end = _find_end(render, added)
    drops = _drops_opening(render)
    if end is None:
        return Shape(None, why="no added token ends an assistant turn", drops_opening=drops)
    faults: dict[Rung, str] = {
        rung: _fault(render, encode, end, rung, _PROBES) for rung in _SPLICES
    }
    rungs: tuple[Rung, ...] = tuple(rung for rung, fault in faults.items() if not fault)
    ruled_out = [f"{rung}: {fault}" for rung, fault in faults.items() if fault]
    return Shape(
        end,
        rungs,
        "" if "sentinel" in rungs else "; ".join(ruled_out),
        edits=not any(_fault(render, encode, end, rung, _EDITS) for rung in rungs),
        tools_in_tail=_tools_in_tail(render, end),
        drops_opening=drops,
    )


@contextlib.contextmanager
def _ending(render: Render) -> Generator[Render]:
    """Yield a function that renders probes, for which errors mean a refusal.

    Raises:
        EndlessTemplate: the rendering of a probe did not end.
    """
    endless: list[EndlessTemplate] = []

    def ending(*args: Any, **options: Any) -> str:
        if endless:
            raise endless[0]
        try:
            return render(*args, **options)
        except EndlessTemplate as error:
            endless.append(error)
            raise

    yield ending
    if endless:
        raise endless[0]


def _alone(render: Render, end: TurnEnd, probe: Probe) -> str:
    return by_sentinel(render, end, probe.reply, probe.new, probe.tools)


def _counted(render: Render, end: TurnEnd, probe: Probe) -> str:
    return by_count(render, end, probe.whole, len(probe.new), probe.tools)


_Splice = Callable[[Render, TurnEnd, Probe], str]
_SPLICES: Mapping[Rung, _Splice] = {"sentinel": _alone, "eos_count": _counted}


def _fault(
    render: Render, encode: Encode, end: TurnEnd, rung: Rung, probes: Sequence[Probe]
) -> str:
    """Return the first probe with a wrong tail, and the reason; or ""."""
    for index, given in enumerate(probes):
        apart = end.calls and given.reply.get("tool_calls")
        probe = replace(given, reply={**given.reply, "content": ""}) if apart else given
        try:
            whole = render(probe.whole, probe.tools)
        except ValueError as error:
            if index == 0:
                return f"{probe.name}: {error}"
            continue
        if SENTINEL not in whole and index:  # the template does not show calls
            continue
        try:
            tail = _SPLICES[rung](render, end, probe)
        except ValueError as error:
            return f"{probe.name}: {error}"
        if not _is_tail(encode, end, whole, tail):
            return f"{probe.name}: the tail is not that of the whole conversation"
    return ""


def _tools_in_tail(render: Render, end: TurnEnd) -> bool:
    for probe in (probe for probe in _PROBES if probe.tools):
        try:
            offered = _alone(render, end, probe)
        except ValueError:  # it is refused later, too
            continue
        try:
            if offered != _alone(render, end, replace(probe, tools=None)):
                return True
        except ValueError:
            return True
    return False


def _is_tail(encode: Encode, end: TurnEnd, whole: str, tail: str) -> bool:
    """Return whether `tail` is all text after the reply, and its tokens do not depend on the text
    before."""
    head = whole.removesuffix(tail)
    said = head[head.rfind(SENTINEL) :]
    ends = len(end.pattern.findall(said))
    if not tail or head == whole or SENTINEL not in head or SENTINEL in tail:
        return False
    if end.opens:
        whole_turn = not ends and end.pattern.match(tail)
    else:
        whole_turn = ends == 1 and head.endswith(end.texts)
    return bool(whole_turn) and encode(head) + encode(tail) == encode(whole)


def _find_end(render: Render, added: Mapping[str, int]) -> TurnEnd | None:
    said = {"role": "assistant", "content": SENTINEL}
    try:
        rendered = render([OPENING, said], None, add_generation_prompt=False)
    except ValueError:
        return None
    any_added = TurnEnd(tuple(added)).pattern if added else None
    after = rendered.rpartition(SENTINEL)[2].lstrip()
    if any_added is None or SENTINEL not in rendered:
        return None
    if close := any_added.match(after):
        return _with_calls(render, any_added, close[0])
    openers: list[str] = []
    for new in ([OPENING], [{"role": "tool", "tool_call_id": "call_0_0", "content": "."}], []):
        try:
            after = render([OPENING, said, *new], None).rpartition(SENTINEL)[2]
        except ValueError:
            continue
        opener = any_added.match(after)
        if opener is None:
            return None
        openers.append(opener[0])
    texts = tuple(dict.fromkeys(openers))
    return TurnEnd(texts, opens=not _closes(render, texts)) if texts else None


def _with_calls(render: Render, any_added: re.Pattern[str], close: str) -> TurnEnd:
    """Return the ends of turns: `close`, and another token if that ends turns with calls."""
    said = _message("assistant", "", tool_calls=[_call(0, f'{{"said": "{SENTINEL}"}}')])
    try:
        rendered = render([OPENING, said], None, add_generation_prompt=False)
    except ValueError:
        return TurnEnd((close,))
    after = rendered.rpartition(SENTINEL)[2].rstrip()
    found = any_added.findall(after)
    if SENTINEL not in rendered or close in found or not found or not after.endswith(found[-1]):
        return TurnEnd((close,))
    return TurnEnd((close, found[-1]), calls=found[-1])


def _closes(render: Render, texts: tuple[str, ...]) -> bool:
    """Return whether the token behind a turn closes it, and only the last turn lacks it: such a
    token does not open the first turn."""
    head = render([{**OPENING, "content": SENTINEL}], None).partition(SENTINEL)[0]
    return len(texts) == 1 and texts[0] not in head


def _drops_opening(render: Render) -> bool:
    question, said = {**OPENING, "content": SENTINEL}, {"role": "assistant", "content": "Yes."}
    try:
        opening, whole = render([question], None), render([question, said, OPENING], None)
    except ValueError:
        return False
    return not whole.partition(SENTINEL)[2].startswith(opening.partition(SENTINEL)[2])


def _message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(position: int, arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"type": "function", "id": f"call_0_{position}", "function": function}


def _probes() -> tuple[list[Probe], list[Probe]]:
    key = {"type": "string", "description": "The key."}
    parameters = {"type": "object", "properties": {"q": key}, "required": ["q"]}
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": parameters},
        }
    ]
    marked = f'{{"q": "\u00e9{SENTINEL}"}}'
    earlier = [_message("user", "Go on: h\u00e9llo"), _message("assistant", "Well."), dict(OPENING)]
    system = [_message("system", "Be brief."), *earlier]
    plain, user = _message("assistant", SENTINEL), _message("user", " more?")
    calls = _message("assistant", SENTINEL, tool_calls=[_call(0, marked)])
    empty = _message("assistant", "", tool_calls=[_call(0, "{}"), _call(1, marked)])
    thinks = {"reasoning_content": "Hm\u2026\n"}
    answer = _message("tool", "12 \u2713\n", tool_call_id="call_0_0", name="f")
    other = {**answer, "tool_call_id": "call_0_1", "content": "error: x"}
    cycle = [*earlier, {**calls, "content": "", "tool_calls": [_call(0, "{}")], **thinks}, answer]
    said = _message("assistant", "No.")
    probes = [
        Probe("a plain turn", earlier, plain, [user]),
        Probe("a first turn", earlier[:1], plain, [user]),
        Probe("a system message", system, plain, [user]),
        Probe("tools offered", system, plain, [user], tools),
        Probe("a tool's answer", earlier, calls, [answer], tools),
        Probe("parallel tool answers", earlier, empty, [answer, other], tools),
        Probe("a thought in a tool cycle", earlier, {**calls, **thinks}, [answer], tools),
        Probe("a second tool cycle", cycle, {**calls, **thinks}, [answer], tools),
        Probe("a user after a tool cycle", cycle, {**plain, **thinks}, [user], tools),
        Probe("a user after an answered call", earlier, calls, [answer, user], tools),
    ]
    called = _message("assistant", "", tool_calls=[_call(0, "{}")], **thinks)
    edits = [
        Probe("an edited turn", earlier, plain, [user, said, user]),
        Probe("an edited thought", earlier, calls, [answer, {**said, **thinks}, user], tools),
        Probe("an edited call", earlier, plain, [user, called, answer], tools),
    ]
    return probes, edits


_PROBES, _EDITS = _probes()
