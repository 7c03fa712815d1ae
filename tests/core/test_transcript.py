"""What an environment is told is taken down exactly, at once, and survives the log."""

from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import pytest

from agentgym_rl.core import AgentError, Outcome, Trajectory
from agentgym_rl.core.transcript import Transcript
from tests.kit.cases import cases

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1e400}'}}
ACTIONS = [
    {"role": "assistant", "content": "plain"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "half a pair \ud83d, then \x00 and \U0001f600"},
    {"role": "assistant", "content": "", "number": 2**80, "share": 0.1, "none": [{}, [], True]},
]


@cases("action", ACTIONS, ids=range(len(ACTIONS)))
def test_actions_survive_the_log_exactly(action):
    taken = Transcript()
    taken.act(action)
    record = Trajectory("e", "g", "t", Outcome.COMPLETED, 0.0, [], actions_json=taken.actions)
    assert Trajectory.unpack(record.pack()).actions == [action]


def test_any_mapping_is_a_message():
    taken = Transcript()
    taken.act(MappingProxyType({"role": "assistant"}))
    assert taken.actions == [b'{"role": "assistant"}']


def test_what_the_agent_does_to_its_message_later_is_not_recorded():
    taken, action = Transcript(), {"role": "assistant", "tool_calls": [dict(CALL)]}
    taken.act(action)
    action["tool_calls"].clear()
    assert b'"f"' in taken.actions[0]


def test_old_logs_have_no_actions():
    fields = msgspec.msgpack.decode(Trajectory("e", "g", "t", Outcome.COMPLETED, 0.5, []).pack())
    old = {k: v for k, v in fields.items() if k not in ("env_id", "actions_json", "answers")}
    found = Trajectory.unpack(msgspec.msgpack.encode(old))
    assert (found.reward, found.actions, found.env_id) == (0.5, None, "")


class Reply:
    """As the SDK's objects are."""

    def model_dump(self) -> dict:
        return {}


@dataclass
class Answer:
    """As agents may think an action is."""

    role: str = "assistant"


@cases(
    "action, said",
    [
        ("text", "got str"),
        (None, "no mapping"),
        ({"a": object()}, "no JSON"),
        (Reply(), "model_d"),
        (Answer(), r"got Answer \(it is no mapping\)"),
    ],
    ids=["text", "none", "object", "reply", "dataclass"],
)
def test_what_is_no_message_is_the_agents_mistake(action, said):
    with pytest.raises(AgentError, match=said):
        Transcript().act(action)


def checksum(messages: list) -> int:
    taken = Transcript()
    taken.answered(messages)
    return taken.answers[0]


def test_checksums_tell_answers_apart_whatever_the_order_of_keys():
    one, other = {"role": "tool", "content": "1"}, {"content": "1", "role": "tool"}
    assert checksum([one]) == checksum([other])
    assert checksum([one]) != checksum([one, one]) != checksum([])
    assert checksum([{"content": "\ud800"}]) != checksum([{"content": "\ud801"}])
    assert checksum([{"content": {1, 2}}]) == checksum([{"content": {1, 2}}])
