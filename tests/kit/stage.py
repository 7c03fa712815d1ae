"""A gateway on a scripted engine, called without sockets; and the check of token exactness."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import NOT_SAMPLED, Row, Sampler
from agentgym_rl.engines.scripted import JournalEntry, Say, ScriptedEngine
from agentgym_rl.gateway import ChatFormat, Gateway, Session, SessionSampling
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models.resolve import BUNDLED

END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*4"}}\n</tool_call>'
ANSWER = "The answer is \\boxed{12}."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Do one arithmetic operation.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
FIRST = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "What is 3*4?"}]


class Speller:
    """Texts as token ids: as the tokenizer would, or byte by byte, as it never would."""

    def __init__(self, chat: ChatFormat) -> None:
        self._tokenizer = chat._tokenizer

    def canonical(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def bytewise(self, text: str) -> list[int]:
        """Return one token per byte; the end of turn stays a token, or the turn would not end."""
        body, end = text.removesuffix(END), text.endswith(END)
        ids = [self._tokenizer.token_to_id(_byte_letter(byte)) for byte in body.encode()]
        return ids + (self.canonical(END) if end else [])


def _byte_letter(byte: int) -> str:
    """Return the letter that stands for a byte in byte-level BPE vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


@dataclass
class Answer:
    """The answer of the gateway: a JSON body, or the events of a stream."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data)

    @property
    def message(self) -> dict[str, Any]:
        assert self.status == 200, self.data
        return self.body["choices"][0]["message"]

    @property
    def error(self) -> dict[str, Any]:
        return self.body["error"]

    @property
    def events(self) -> list[Any]:
        lines = [line for line in self.data.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]

    @property
    def typed_events(self) -> list[Any]:
        """Return the events of a stream whose events are named; the name is also their type."""
        events = []
        for block in self.data.decode().split("\n\n")[:-1]:
            name, _, data = block.removeprefix("event: ").partition("\ndata: ")
            events.append(json.loads(data))
            assert events[-1]["type"] == name
        return events


class Stage:
    """A gateway over a sampler, and requests straight into its ASGI app."""

    def __init__(self, chat: ChatFormat, script: Any, **options: Any) -> None:
        self.engine = script if isinstance(script, Sampler) else ScriptedEngine(script)
        self.gateway = Gateway(
            self.engine,
            chat,
            config=options.pop("config", GatewayConfig()),
            model_name="tiny",
            max_model_len=options.pop("max_model_len", 4096),
        )
        assert not options, options

    def open(self, *, turn_timeout_s: float = 5.0, **policy: Any) -> Session:
        sampling = SessionSampling(**({"max_tokens": 512, "temperature": 1.0} | policy))
        return self.gateway.open_session(
            sampling=sampling, session_id="e1", turn_timeout_s=turn_timeout_s
        )

    async def post(
        self,
        key: str | Session,
        body: Any = None,
        *,
        path: str = "/v1/chat/completions",
        hang_up_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send a request to `path`; the client hangs up after `hang_up_s`."""
        key = key.key if isinstance(key, Session) else key
        fields = {"model": "tiny", **fields}
        data = json.dumps(fields).encode() if body is None else body
        headers = {"authorization": f"Bearer {key}", **(headers or {})}
        return await self.request("POST", path, data, headers, hang_up_s)

    async def request(
        self,
        method: str,
        path: str,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        hang_up_s: float = 60.0,
        query: str = "",
    ) -> Answer:
        sent: list[Any] = []
        pending = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if pending:
                return pending.pop()
            await asyncio.sleep(hang_up_s)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        scope["query_string"] = query.encode()
        await self.gateway.app(scope, receive, send)
        if not sent:
            return Answer(0, {}, b"")
        back = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], back, b"".join(m["body"] for m in sent[1:]))

    async def play(
        self, session: Session, observations: Sequence[str], **fields: Any
    ) -> list[dict[str, Any]]:
        """Send a request, then another one after each observation; return the conversation."""
        messages: list[dict[str, Any]] = list(FIRST)
        for observation in [*observations, None]:
            message = (await self.post(session, messages=messages, **fields)).message
            messages = [*messages, message]
            if observation is not None:
                messages += observe(message, observation)
        return messages


def observe(message: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """Return the next messages of an environment: an answer to every call, or a user message."""
    calls = message.get("tool_calls") or []
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    return answers or [{"role": "user", "content": text}]


def check_exact(
    rows: Sequence[Row],
    journal: Sequence[JournalEntry],
    *,
    num_rows: int = 1,
    temperature: float = 1.0,
) -> None:
    """Check that rows are, one for one, the tokens that the engine was fed and sampled, and that
    each sample trains once."""
    assert len(rows) == num_rows
    times_trained = [0] * len(journal)
    for row in rows:
        tokens, sampled = row.tokens.tolist(), np.zeros(len(row), bool)
        found = [
            (index, len(entry.prompt), entry)
            for index, entry in enumerate(journal)
            if tokens[: len(entry.prompt) + len(entry.token_ids)]
            == [*entry.prompt, *entry.token_ids]
        ]
        assert any(start + len(entry.token_ids) == len(row) for _, start, entry in found)
        for index, start, entry in found:
            span = slice(start, start + len(entry.token_ids))
            assert not sampled[span].any()
            sampled[span] = True
            assert row.behavior_logprobs[span].tolist() == np.float32(entry.logprobs).tolist()
            assert row.policy_versions[span].tolist() == entry.versions
            assert row.times_s[span].tolist() == entry.times_s
            assert (row.temperatures[span] == np.float32(temperature)).all()
            assert len(set(row.turn_ids[span].tolist())) <= 1
            mask = set(row.loss_mask[span].tolist())
            assert len(mask) <= 1, "a sample trains whole or not at all"
            times_trained[index] += mask == {True}
        assert not row.loss_mask[~sampled].any()
        assert (row.policy_versions[~sampled] == NOT_SAMPLED).all()
        assert (row.admitted_versions[~sampled] == NOT_SAMPLED).all()
        assert (row.turn_ids[~sampled] == -1).all()
        for unsampled in (row.behavior_logprobs, row.temperatures, row.times_s):
            assert not unsampled[~sampled].any()
    expected = [int(bool(entry.token_ids)) for entry in journal]
    assert times_trained == expected, "every sample trains in exactly one row"


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    return ChatFormat.load(BUNDLED)


THINKER = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- m.content or '' }}
    {%- for c in m.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": "' ~ c.function.name ~ '", "arguments": ' }}
        {{- c.function.arguments | tojson ~ '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}OPENED{% endif %}"""


@pytest.fixture(scope="session")
def thinker():
    """Return a function that makes a chat format with thoughts. `opened`: its prompts end inside a
    thought; `head`: the text with which prompts begin."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))

    def make(*, opened=False, head=""):
        source = head + THINKER.replace("OPENED", "{{ '<think>\\n' }}" if opened else "")
        return ChatFormat(tokenizer, ChatTemplate(source, special_tokens={}), [2])

    return make


@pytest.fixture(scope="session")
def spell(chat) -> Speller:
    return Speller(chat)


@pytest.fixture
def stage(chat):
    """Return a function that makes a Stage from an engine, a script, or a list of replies."""
    return lambda script, **options: Stage(options.pop("chat", chat), script, **options)


@pytest.fixture(scope="session")
def words():
    """Return the constants and helpers above, for test files (which cannot import a conftest)."""
    return _Words


class _Words:
    END, CALL, ANSWER, CALCULATOR, FIRST = END, CALL, ANSWER, CALCULATOR, FIRST
    Say, Stage = Say, Stage
    observe = staticmethod(observe)
    check_exact = staticmethod(check_exact)
