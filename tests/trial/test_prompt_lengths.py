"""Prompts that do not fit the context are counted, or refused, before anything starts."""

import asyncio
import json
import shutil
import time

import pytest
from arl_trial import prompt_lengths as counting

from agentgym_rl import Env, Step
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import check_prompts
from agentgym_rl.runtime import run_interruptible

SHORT, LONG = "What is 2+3?", "number word " * 100


def score(completion, row):
    return 1.0


class Odd(Env):
    """`reset` does what `trouble` says; its prompts are long."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    async def reset(self, *, seed=None, options=None):
        if self.trouble == "blocks":
            time.sleep(60)  # noqa: ASYNC251
        if self.trouble == "waits":
            await asyncio.sleep(60)
        if self.trouble == "fails":
            raise RuntimeError("no prompt today")
        if self.trouble == "renders":
            return [{"role": "user", "content": "<|user|>\n2+3?<|assistant|>\n"}], {}
        return [{"role": "user", "content": LONG}], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})


class Boxed(Odd):
    """Its prompts need a sandbox that is there, although it is not started."""

    needs_sandboxes = True

    async def reset(self, *, seed=None, options=None):
        assert options["sandboxes"] is not None
        return await super().reset()


def written(folder, prompts):
    path = folder / f"{len(prompts)}.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "id": i}) + "\n" for i, p in prompts))
    return path


def numbered(*prompts):
    return [(i, f"{i} {prompt}") for i, prompt in enumerate(prompts)]


def warned(caplog):
    """What was warned of, whatever level of logs other tests have left."""
    return [r.getMessage() for r in caplog.records if r.name == counting.__name__]


def check(path=None, splits=("eval", "train"), said=lambda text: None, run=asyncio.run, **keys):
    named = {"env.id": f"reward:{__name__}:score", "env.options.data": str(path)} if path else {}
    settings = {**named, **{key.replace("__", "."): value for key, value in keys.items()}}
    run(check_prompts(load_config(None, settings), splits, say=said))


def test_prompts_that_do_not_fit_are_counted_for_each_split(tmp_path, caplog):
    half = written(tmp_path, numbered(*[SHORT, LONG] * 20))
    held = written(tmp_path, [(100 + i, f"h{i} {p}") for i, p in enumerate([LONG, SHORT, SHORT])])
    check(half, env__options__eval_data=str(held))
    held_out, trained = warned(caplog)
    assert "1 of 3 eval prompts do not fit engine.max_model_len 512" in held_out
    assert "20 of 40 train prompts do not fit engine.max_model_len 512" in trained
    caplog.clear()
    check(half, env__options__eval_data=str(held), engine__max_model_len=1024,
          trainer__max_tokens_per_microbatch=1024)  # fmt: skip
    check(half, ("eval",), env__options__eval_data=str(held), eval__num_tasks=0)
    assert warned(caplog) == []
    wide = {"engine__max_model_len": 8192, "trainer__max_tokens_per_microbatch": 8192}
    check(written(tmp_path, numbered(SHORT, LONG * 2)), ("train",), **wide,
          env__options__eval_data=str(held))  # fmt: skip
    assert "1 of 2 train prompts do not fit the 1,024 positions of the model:" in caplog.text


def test_the_positions_of_a_text_model_inside_another_count(tmp_path, caplog):
    model = tmp_path / "model"
    shutil.copytree(BUNDLED, model)
    about = {"text_config": {"max_position_embeddings": 256}}
    (model / "config.json").write_text(json.dumps(about))
    check(written(tmp_path, numbered(SHORT, LONG)), ("train",), model__path=str(model),
          env__options__eval_data=str(written(tmp_path, [(9, "2")])))  # fmt: skip
    assert "1 of 2 train prompts do not fit the 256 positions of the model:" in caplog.text


def test_a_run_none_of_whose_prompts_fits_is_refused(tmp_path, caplog):
    long = written(tmp_path, numbered(*[LONG] * 30))
    held = written(tmp_path, [(100 + i, f"h{i} {SHORT}") for i in range(3)])
    with pytest.raises(ConfigError, match=r"none of 30 train prompts fits engine.max_model_len"):
        check(long, env__options__eval_data=str(held))
    with pytest.raises(ConfigError, match=r"none of 30 eval prompts fits"):
        check(held, env__options__eval_data=str(long))
    with pytest.raises(ConfigError, match=r"3 train prompts fits rollout.max_input_tokens 5,"):
        check(held, ("train",), env__options__eval_data=str(long), rollout__max_input_tokens=5)
    with pytest.raises(ConfigError, match=r"none of 64 train prompts \(a sample\) fits"):
        check(None, ("train",), env__id=f"{__name__}:Odd")


def test_prompts_of_an_environment_with_sandboxes_are_measured():
    with pytest.raises(ConfigError, match=r"none of 64 train prompts \(a sample\) fits"):
        check(None, ("train",), env__id=f"{__name__}:Boxed")


def test_the_edge_is_one_token_for_a_reply(tmp_path, caplog):
    chat = ChatFormat.load(BUNDLED)
    one = written(tmp_path, [(0, SHORT)])
    held = written(tmp_path, [(1, "2"), (2, "3")])
    length = len(chat.prompt([{"role": "user", "content": SHORT}], None))

    def at(context, max_tokens=4):
        check(one, ("train",), env__options__eval_data=str(held), engine__max_model_len=context,
              rollout__max_tokens=max_tokens)  # fmt: skip

    with pytest.raises(ConfigError, match="none of 1 train prompts fits"):
        at(length)
    at(length + 1)
    (tight,) = warned(caplog)
    assert f"1 of 1 train prompts leave less than rollout.max_tokens 4 of the {length + 1}" in tight
    caplog.clear()
    at(length + 4)
    assert warned(caplog) == []


def test_large_data_is_sampled_all_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(counting, "MOST_TASKS", 20)
    path = written(tmp_path, numbered(*[SHORT, LONG] * 100))
    check(path, ("train",), env__options__eval_data=str(written(tmp_path, [(900, "2")])))
    (said,) = warned(caplog)
    assert "of 20 train prompts (a sample of 200) do not fit" in said
    assert not said.split(": ")[1].startswith(("0 of", "20 of"))


def test_an_environment_that_misbehaves_holds_up_nothing(monkeypatch, caplog):
    monkeypatch.setattr(counting, "_LONGEST_S", 0.1)
    for trouble in ("waits", "fails"):
        check(None, ("train",), env__id=f"{__name__}:Odd", env__options__trouble=trouble)
    assert warned(caplog) == []


def test_a_reset_that_blocks_is_interrupted_and_named(caplog):
    begun_s = time.monotonic()
    check(
        None, ("train",), run=lambda work: run_interruptible(lambda: work),
        env__id=f"{__name__}:Odd", env__options__trouble="blocks", rollout__tool_timeout_s=0.5,
    )  # fmt: skip
    assert time.monotonic() - begun_s < 30
    (said,) = warned(caplog)
    assert "it is not known how many prompts are too long: " in said
    assert "tests/trial/test_prompt_lengths.py, line " in said
    assert "in reset has blocked the event loop" in said


def test_prompts_that_are_rendered_already_are_refused():
    with pytest.raises(ConfigError, match=r"Odd.*, train task 0: a prompt that is rendered"):
        check(None, ("train",), env__id=f"{__name__}:Odd", env__options__trouble="renders")


def test_what_takes_long_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "_REPORT_AFTER_S", 0.0)
    told = []
    check(written(tmp_path, numbered(SHORT, SHORT, SHORT)), ("train",), told.append,
          env__options__eval_data=str(written(tmp_path, [(9, "2")])))  # fmt: skip
    assert told[-1] == "measuring prompts: 3 of 3 train tasks"


def _without_tools(folder):
    """The bundled model, with a chat template that knows no tools."""
    shutil.copytree(BUNDLED, folder)
    turn = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    (folder / "chat_template.jinja").write_text(f"{{% for m in messages %}}{turn}{{% endfor %}}")
    return folder


def test_tools_that_the_template_hides_are_told_of_once_or_refused(tmp_path, caplog):
    model = str(_without_tools(tmp_path / "model"))
    check(env__id="math", model__path=model)
    said = [text for r in caplog.records if "system message" in (text := r.getMessage())]
    assert len(said) == 1
    assert "calls are read as hermes (gateway.hidden_tools)" in said[0]
    for name, value in (("hidden_tools", "refuse"), ("tool_parser", "llama3_json")):
        with pytest.raises(ConfigError, match="tools are offered, and the chat template does not"):
            check(env__id="math", model__path=model, **{f"gateway__{name}": value})


def test_a_switch_of_thoughts_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"gateway\.enable_thinking is false, but"):
        check(env__id="math", gateway__enable_thinking=False)
