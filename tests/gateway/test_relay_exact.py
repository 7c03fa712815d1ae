"""Our own gateway as somebody's endpoint: it sees whether a conversation comes back as it was."""

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import ChatFormat, Gateway, SessionSampling
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

pytest.importorskip("anthropic")

from someones_relay import message, respond, talk

START = {"role": "user", "content": "Add."}
REPLIES = [
    "<think>\nHm,  so.\n</think>\n\n"
    'Two: <tool_call>\n{"name": "add", "arguments": {"b":  1.0}}\n</tool_call>'
    '<tool_call>\n{"name": "add", "arguments": {"é": "\\u00e9"}}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": \n</tool_call>',
    "Done,\n so.",
    "Bye.",
]


class ByInput:
    """Responses, with everything sent again."""

    def __init__(self):
        self.sent, self.options = [START], {"include": ["reasoning.encrypted_content"]}

    async def ask(self, scene, stream):
        """The ids of the calls that came."""
        reply = await respond(scene, stream=stream, input=self.sent, **self.options)
        self.keep(reply)
        return [item.call_id for item in reply.output if item.type == "function_call"]

    def keep(self, reply):
        self.sent += [item.model_dump(exclude_none=True) for item in reply.output]

    def hear(self, ids):
        for id in ids:
            self.sent.append({"type": "function_call_output", "call_id": id, "output": f"of {id}"})
        self.sent += [] if ids else [{"role": "user", "content": "Sure?"}]


class ById(ByInput):
    """Responses, with what is new."""

    def keep(self, reply):
        self.sent, self.options = [], {"previous_response_id": reply.id}


class ByBlocks:
    """Messages."""

    def __init__(self):
        self.sent = [START]

    async def ask(self, scene, stream):
        reply = await message(scene, stream=stream, messages=self.sent)
        said = [block.model_dump() for block in reply.content]
        self.sent.append({"role": "assistant", "content": said})
        return [block.id for block in reply.content if block.type == "tool_use"]

    def hear(self, ids):
        results = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in ids]
        self.sent.append({"role": "user", "content": results or "Sure?"})


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


@cases("stream", [False, True])
@cases("speaker", [ByInput, ById, ByBlocks])
def test_a_conversation_is_one_row_there(speaker, stream, chat):
    engine = ScriptedEngine([chat.encode(f"{reply}<|im_end|>") for reply in REPLIES])
    config = GatewayConfig(reasoning_parser="think")
    gateway = Gateway(engine, chat, config=config, model_name="ours", max_model_len=2048)
    theirs = gateway.open_session(sampling=SessionSampling(max_tokens=256), session_id="s")

    async def converse(scene):
        client = speaker()
        for _ in REPLIES:
            client.hear(await client.ask(scene, stream))
        return scene.close()

    ours = talk(gateway.app, converse, api_key=theirs.key)
    record = gateway.close_session(theirs)
    assert (len(record.rows), record.counters["forks"]) == (1, 0)
    assert (record.num_turns, ours.num_turns) == (4, 4)
    for counter in ("tool_calls", "malformed_calls", "prompt_tokens", "sampled_tokens"):
        assert ours.counters[counter] == record.counters[counter] > 0
    assert ours.messages[-1]["content"] == "Bye."
