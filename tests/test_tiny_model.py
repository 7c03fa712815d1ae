"""The bundled model: its files, its chat template, its tokenizer, and the script that makes it."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym_rl.model import BUNDLED, resolve_model

SCRIPTS = Path(__file__).parent.parent / "scripts" / "tiny_model"
TOKENIZER = AutoTokenizer.from_pretrained(BUNDLED)
TOOLS = [dict(tool) for tool in MathEnv().tools]


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise ValueError(message)


def plain_render(messages: list[Any], tools: list[Any] | None, *, generate: bool) -> str:
    """The template by jinja2 alone, with the few things transformers adds to it."""
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    jinja.globals["raise_exception"] = _refuse
    template = jinja.from_string((BUNDLED / "chat_template.jinja").read_text())
    return template.render(messages=messages, tools=tools, add_generation_prompt=generate)


def render(messages: list[Any], tools: list[Any] | None = None, *, generate: bool = False) -> str:
    return TOKENIZER.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=generate
    )


def call(arguments: Any, name: str = "calculator") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Grüße <b>&amp;</b> '漢字' \"{}\""}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [call({"expression": "3*4 > 'é'"}), call('{"expression":"5+6"}')],
}
TOOL = {"role": "tool", "tool_call_id": "c", "content": "12\n"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, CALLS, TOOL, TOOL],
    [
        SYSTEM,
        USER,
        {**CALLS, "content": "Let me see."},
        TOOL,
        {"role": "assistant", "content": "12"},
    ],
    [{"role": "developer", "content": "Hm."}, USER, {"role": "assistant", "content": ""}, USER],
    [USER, {"role": "assistant", "content": "Hi", "tool_calls": None}, SYSTEM, USER],
    [
        SYSTEM,
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
]


def test_the_bundle_is_small_and_complete() -> None:
    assert resolve_model("bundled/math") == BUNDLED
    names = {file.name for file in BUNDLED.iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
        *("tokenizer_config.json", "chat_template.jinja"),
    }
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) <= 2_000_000


def test_it_loads_and_runs() -> None:
    model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert sum(p.numel() for p in model.parameters()) == 869_760
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == TOKENIZER.eos_token_id == 2
    logits = model(torch.tensor([TOKENIZER.encode("3*4")])).logits
    assert logits.shape[-1] == len(TOKENIZER) == 640
    assert logits.isfinite().all()


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("generate", [False, True])
def test_plain_jinja_renders_the_same(messages, tools, generate: bool) -> None:
    assert plain_render(messages, tools, generate=generate) == render(
        messages, tools, generate=generate
    )


def test_a_rendered_conversation() -> None:
    text = render([SYSTEM, {"role": "user", "content": "Hi"}, CALLS, TOOL], TOOLS, generate=True)
    assert text == (
        "<|im_start|>system\nBe brief.\n<tools>\n"
        + json.dumps(TOOLS[0])
        + "\n</tools><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*4 > \'é\'"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "calculator", "arguments": {"expression":"5+6"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n12\n\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_fewer_messages_render_a_prefix(messages) -> None:
    whole = render(messages, TOOLS)
    assert all(whole.startswith(render(messages[:n], TOOLS)) for n in range(1, len(messages)))


def test_the_template_refuses_what_it_cannot_say() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for message in (image, {"role": "function", "content": "12"}):
        with pytest.raises(ValueError, match=r"text only|unknown role"):
            plain_render([message], None, generate=False)


def test_transformers_marks_what_the_assistant_said() -> None:
    out = TOKENIZER.apply_chat_template(
        [SYSTEM, USER, CALLS, TOOL], return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(out["input_ids"], out["assistant_masks"], strict=True)
    said = TOKENIZER.decode([id for id, is_said in pairs if is_said])
    assert said.startswith("<tool_call>")
    assert said.endswith("</tool_call><|im_end|>")


@given(st.text(max_size=80))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text
    bare = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    assert bare.encode(text, add_special_tokens=False).ids == ids


def test_tool_tags_are_text_and_control_tokens_are_not() -> None:
    ids = TOKENIZER.encode("<|im_start|><think><tool_call>x</tool_call><|im_end|><|endoftext|>")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think><tool_call>x</tool_call>"
    assert len(ids) == 7


def test_digits_are_single_tokens_and_boilerplate_is_cheap() -> None:
    assert len(TOKENIZER.encode("1234567890")) == 10
    task = MathEnv.task_source("eval", seed=0)[0]
    messages = [{"role": "user", "content": task.data["question"]}, *map(dict, solve(task))]
    assert len(TOKENIZER.encode(render([SYSTEM, *messages], TOOLS, generate=True))) < 110


ROWS_MATCH_THE_GATEWAY = """
import random
from agentgym_rl.gateway.chat import ChatFormat
from agentgym_rl.model import BUNDLED
from arl_envs.math.levels import LEVELS
from habits import EVEN, demonstration
from rows import row_of
from transformers import AutoTokenizer

tokenizer, chat = AutoTokenizer.from_pretrained(BUNDLED), ChatFormat.load(BUNDLED)
rng = random.Random(0)
tools = [LEVELS[1].calculator.tool]
for _ in range(200):
    messages = demonstration(rng, LEVELS[1].generate(rng), EVEN)
    row = row_of(tokenizer, messages)
    ids = chat.prompt(messages[:2], tools)
    for i in range(2, len(messages), 2):
        end = row.ids.index(chat.close_id, len(ids)) + 1
        assert all(row.loss_mask[len(ids) : end])
        ids += row.ids[len(ids) : end]
        if i + 1 < len(messages):
            ids += chat.suffix(messages[i], [messages[i + 1]], tools)
            assert not row.loss_mask[len(ids) - 1]
    assert ids == row.ids
"""


def python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=SCRIPTS, check=True, capture_output=True)


@pytest.mark.slow
def test_training_rows_are_what_a_rollout_records() -> None:
    python("-c", ROWS_MATCH_THE_GATEWAY)


@pytest.mark.slow
def test_the_script_is_deterministic(tmp_path: Path) -> None:
    hashes: list[dict[str, str]] = []
    for name in ("a", "b"):
        sizes = ("--clean-steps", "3", "--mixed-steps", "3", "--tasks", "4")
        python("make.py", "--out", str(tmp_path / name), "--seed", "1", *sizes)
        files = sorted((tmp_path / name).iterdir())
        hashes.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files})
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 6


@pytest.mark.slow
def test_the_bundle_has_the_scripts_tokenizer(tmp_path: Path) -> None:
    sizes = ("--clean-steps", "1", "--mixed-steps", "0", "--tasks", "0")
    python("make.py", "--out", str(tmp_path), "--seed", "0", *sizes)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / name).read_bytes() == (BUNDLED / name).read_bytes()
