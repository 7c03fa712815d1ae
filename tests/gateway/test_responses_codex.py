"""What the Codex CLI sends (0.169, recorded, texts and schemas shortened), turn after turn.

It streams, stores nothing, sends everything again each time under ids of ours and of its own, and
groups tools in a namespace.
"""

import asyncio

import pytest

PATH = "/v1/responses"
STRING = {"type": "string"}
SPAWN = '<tool_call>\n{"name": "spawn_agent", "arguments": {"message": "é"}}\n</tool_call>'
EXEC = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>'


def _function(name, argument):
    schema = {"type": "object", "properties": {argument: STRING}, "required": [argument]}
    schema["additionalProperties"] = False
    head = {"type": "function", "name": name, "description": "Does it."}
    return {**head, "strict": False, "parameters": schema}


GROUP = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents."}
REQUEST = {
    "model": "tiny",
    "tools": [
        _function("exec_command", "cmd"),
        {**GROUP, "tools": [_function("spawn_agent", "message")]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2027b-ceb2-7e31-947b-abaa2aa6c2ef",
    "client_metadata": {"session_id": "01a2027b-ceb2-7e31-947b-abaa2aa6c2ef"},
}


def _message(role, text, number):
    part = {"type": "input_text", "text": text}
    return {"type": "message", "id": f"msg_01a2027b-cf1a-7033-{number}", "role": role} | {
        "content": [part]
    }


FIRST = [
    _message("developer", "You are a coding agent.", 1),
    _message("developer", "<permissions>", 2),
    _message("user", "<environment_context>", 3),
    _message("user", "What is in this folder?", 4),
]


def _echoed(item):
    """An output item as Codex sends it back: without status, and text parts with nothing else."""
    item = {name: value for name, value in item.items() if name != "status"}
    if item["type"] == "message":
        item["content"] = [{"type": "output_text", "text": p["text"]} for p in item["content"]]
    return item


@pytest.fixture
def played(stage, spell, words):
    texts = [f"I look.\n{EXEC}", f"{SPAWN}\n{EXEC}", "All done é."]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session, said, items = scene.open(), list(FIRST), []
    for number in range(len(texts)):
        answer = asyncio.run(scene.post(session, path=PATH, **REQUEST, input=said))
        done = [e["item"] for e in answer.typed_events if e["type"] == "response.output_item.done"]
        calls = [item for item in done if item["type"] == "function_call"]
        said += map(_echoed, done)
        said += [
            {
                **{"type": "function_call_output", "id": f"fco_01a2027b-d0d5-{number}"},
                **{"call_id": call["call_id"], "output": "Chunk ID: 1\nOutput:\na.txt\n"},
            }
            for call in calls
        ]
        items += done
    return scene, session, items


def test_its_session_is_one_exact_row(played, words):
    scene, session, _ = played
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (record.counters["forks"], record.num_turns) == (0, 3)


def test_a_call_of_a_namespace_names_it(played):
    _, _, items = played
    calls = [item for item in items if item["type"] == "function_call"]
    named = [(call["name"], call.get("namespace")) for call in calls]
    assert named == [
        ("exec_command", None),
        ("spawn_agent", "multi_agent_v1"),
        ("exec_command", None),
    ]
