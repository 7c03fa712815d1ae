"""The bundled models: their files, chat templates, tokenizers, and the script that makes them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_envs.gymnasium.env import GymnasiumEnv
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym_rl.config import Config, load_config
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models import BUNDLED_MODELS
from agentgym_rl.models.resolve import BUNDLED
from tests.e2e.forked import run
from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases

SCRIPTS = Path(__file__).parents[2] / "scripts" / "tiny_model"
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


PARAMETERS = {
    "bundled/math": 869_760,
    "bundled/tools": 902_528,
    "bundled/frozenlake": 372_960,
    "bundled/code": 902_528,
    "bundled/bugs": 931_200,
    "bundled/agents": 882_048,
    "bundled/tictactoe": 365_952,
}


@cases("name", BUNDLED_MODELS)
def test_a_bundle_is_small_and_complete(name: str) -> None:
    folder = BUNDLED_MODELS[name]
    names = {file.name for file in folder.iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
        *("tokenizer_config.json", "chat_template.jinja"),
    }
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_it_loads_and_runs(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODELS[name])
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_MODELS[name], dtype=torch.float32)
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    logits = model(torch.tensor([tokenizer.encode("3*4")])).logits
    assert logits.shape[-1] == len(tokenizer)
    assert logits.isfinite().all()


@cases("name", BUNDLED_MODELS)
def test_its_turns_can_be_appended_to_the_tokens_that_were_sampled(name: str) -> None:
    assert ChatFormat.load(BUNDLED_MODELS[name]).bridges


def test_a_hundred_turns_on_the_lake_fit_the_default_context() -> None:
    chat = ChatFormat.load(BUNDLED_MODELS["bundled/frozenlake"])
    env = GymnasiumEnv(id="FrozenLake-v1")
    said = {"role": "assistant", "content": "right"}
    seen = {"role": "user", "content": "Row 4, column 3."}
    ids = chat.prompt([*env.reset(seed=0)[0], *([said, seen] * 99)], None)
    assert len(ids) + 2 < Config().own_engine.max_model_len


@cases("messages", CONVERSATIONS)
@cases("tools", [None, TOOLS])
@cases("generate", [False, True])
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


@cases("messages", CONVERSATIONS)
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


@pytest.mark.slow
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
import itertools, random, sys
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.models.resolve import BUNDLED_MODELS
from families import FAMILIES
from family import Stage
from rows import row_of
from transformers import AutoTokenizer

family, folder = FAMILIES[sys.argv[1]], BUNDLED_MODELS["bundled/" + sys.argv[1]]
tokenizer, chat = AutoTokenizer.from_pretrained(folder), ChatFormat.load(folder)
rng = random.Random(0)
for _ in range(100):
    shown = family.conversation(rng, Stage.EVEN)
    messages, tools, row = shown.messages, shown.tools or None, row_of(tokenizer, shown)
    trained = range(shown.num_given, len(messages))
    said = [i for i in trained if messages[i]["role"] == "assistant"]
    ids = chat.prompt(messages[: said[0]], tools)
    for now, after in itertools.pairwise([*said, None]):
        end = row.ids.index(chat.close_id, len(ids)) + 1
        assert all(row.loss_mask[len(ids) : end])
        ids += row.ids[len(ids) : end]
        if after is not None:
            ids += chat.suffix(messages[now], messages[now + 1 : after], tools)
            assert not row.loss_mask[len(ids) - 1]
    assert ids == row.ids
"""


MAKE_ALL = """
import sys, make
folder = sys.argv[1]
for family, texts in FAMILIES.items():
    sizes = ["--clean-steps=2", "--mixed-steps=1", "--rows-per-step=4"]
    sizes += [f"--tokenizer-texts={texts}", f"--tasks={2 if family == 'math' else 0}", "--seed=0"]
    sys.argv = ["make.py", "--family", family, "--out", f"{folder}/{family}", *sizes]
    make.main()
"""

PLAY = """
import sys, torch
from families import FAMILIES
from measure import measure
from agentgym_rl.models.resolve import BUNDLED_MODELS
from transformers import AutoModelForCausalLM, AutoTokenizer

family, num_tasks = sys.argv[1:]
folder = BUNDLED_MODELS["bundled/" + family]
network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
torch.set_num_threads(1)
found = measure(network, tokenizer, FAMILIES[family], num_tasks=int(num_tasks), temperature=1.0)
print(found.reward)
"""


def python(program: str, folder: Path, *arguments: str) -> str:
    """What a program printed that imports modules of the script."""
    (folder / "program.py").write_text(program)
    path = os.pathsep.join([str(folder), str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    done = run("program", *arguments, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


FAMILIES = ["math", "tools", "frozenlake", "code", "agents"]
REWARDS = dict.fromkeys(FAMILIES, (0.1, 0.4)) | dict.fromkeys(("math", "agents"), (0.2, 0.45))
PLAYED = {"math": 96, "tools": 96, "frozenlake": 96 if EXHAUSTIVE else 32, "code": 64, "agents": 96}
TEXTS = dict.fromkeys(FAMILIES, 4000) | (
    {} if EXHAUSTIVE else {"tools": 100, "frozenlake": 100, "code": 100, "agents": 100}
)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "tictactoe"])
def test_training_rows_are_what_a_rollout_records(family: str, tmp_path: Path) -> None:
    python(ROWS_MATCH_THE_GATEWAY, tmp_path, family)


@pytest.mark.slow
def test_the_script_is_deterministic_and_makes_the_bundles_tokenizers(tmp_path: Path) -> None:
    """Two processes that hash differently make the same bytes.

    The tokenizers that are not trained on all their texts (but for math: half a minute, with
    ARL_EXHAUSTIVE=1) are the bundles' but for the order, and a seventh at most, of the tokens.
    """
    made = [tmp_path / name for name in ("forked", "executed")]
    program = MAKE_ALL.replace("FAMILIES", repr(TEXTS))
    python(program, tmp_path, str(made[0]))
    argv = [sys.executable, "-c", program, str(made[1])]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run(argv, cwd=SCRIPTS, env=environment, check=True, capture_output=True)
    for family, texts in TEXTS.items():
        first, second = (
            {file.name: file.read_bytes() for file in (folder / family).iterdir()}
            for folder in made
        )
        assert first == second
        assert len(first) == 6
        bundle = BUNDLED_MODELS[f"bundled/{family}"]
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            assert first[name] == (bundle / name).read_bytes()
        configs = [
            json.loads(text)
            for text in (first["config.json"], (bundle / "config.json").read_bytes())
        ]
        for config in configs:
            del config["transformers_version"]
        assert configs[0] == configs[1]
        are_alike(json.loads(first["tokenizer.json"]), bundle, whole=texts == 4000)


def are_alike(tokenizer: dict[str, Any], bundle: Path, *, whole: bool) -> None:
    bundled = json.loads((bundle / "tokenizer.json").read_text())
    if not whole:
        tokens, expected = (set(each["model"].pop("vocab")) for each in (tokenizer, bundled))
        assert len(tokens & expected) >= 0.85 * len(tokens) > 0.85 * 400
        assert len(tokenizer["model"].pop("merges")) == len(bundled["model"].pop("merges"))
    assert tokenizer == bundled


CODE = """
import json
from code_habits import CODE

print(json.dumps([CODE.options, CODE.max_tokens]))
"""


@pytest.mark.slow
def test_the_example_asks_for_the_programs_that_the_model_knows(tmp_path: Path) -> None:
    config = load_config(SCRIPTS.parents[1] / "examples" / "programs.toml")
    options, max_tokens = json.loads(python(CODE, tmp_path))
    assert (config.env.options, config.rollout.max_tokens) == (options, max_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_right_now_and_then(family: str, tmp_path: Path) -> None:
    reward = float(python(PLAY, tmp_path, family, str(PLAYED[family])))
    low, high = REWARDS[family]
    assert low < reward < high
