"""The defaults that fit a model: by its size, its context and the device."""

import json
import logging
import os
from pathlib import Path

import pytest

from agentgym_rl.config import Config, dump_toml, load_config, unset_keys
from agentgym_rl.core import ConfigError
from agentgym_rl.models import BUNDLED_MODELS, with_model_defaults
from agentgym_rl.models import defaults as module
from tests.kit.cases import cases

M, B = 10**6, 10**9


def model(
    folder: Path, size: int, *, context: int | None = 8192, layers=30, kv_heads=3, dim=64, **about
) -> Path:
    """Make the folder of a model with `size` parameters of 16 bits, zeros that take no room."""
    folder.mkdir(exist_ok=True)
    head = {"w": {"dtype": "BF16", "shape": [size], "data_offsets": [0, 2 * size]}}
    header = json.dumps(head).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + 2 * size)
    about |= {"num_hidden_layers": layers, "num_attention_heads": 9}
    about |= {"num_key_value_heads": kv_heads, "head_dim": dim}
    if context is not None:
        about["max_position_embeddings"] = context
    (folder / "config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(module, "may_use_gpu", lambda device: device == "cuda")


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_nothing_changes_for_the_bundled_models(name, caplog):
    caplog.set_level(logging.INFO)
    found = with_model_defaults(Config(), BUNDLED_MODELS[name], turns=6)
    assert found == load_config(None, {"trainer.learning_rate": 3e-4})
    assert caplog.text == ""


@cases("size, rate", [(M, 3e-4), (135 * M, 1e-5), (4 * B, 5e-6), (32 * B, 1e-6)])
def test_the_learning_rate_falls_with_the_size(size, rate, tmp_path):
    assert with_model_defaults(Config(), model(tmp_path / "m", size)).trainer.learning_rate == rate


@cases("size, minutes", [(M, 0), (135 * M, 30), (8 * B, 30), (32 * B, 60)])
def test_long_runs_write_checkpoints_unless_batches_are_counted(size, minutes, tmp_path):
    folder = model(tmp_path / "m", size)
    found = with_model_defaults(Config(), folder).trainer
    assert (found.checkpoint_every, found.checkpoint_every_minutes) == (0, minutes)
    for key, value in (("checkpoint_every", 5), ("checkpoint_every_minutes", 0)):
        own = with_model_defaults(load_config(None, {f"trainer.{key}": value}), folder).trainer
        assert (getattr(own, key), own.checkpoint_every_minutes) == (value, 0)


@cases("size, rate", [(M, 5e-4), (135 * M, 1e-4), (4 * B, 2e-5), (32 * B, 1e-5)])
def test_the_warm_up_s_rate_falls_with_the_size(size, rate, tmp_path):
    asked = load_config(None, {"init.method": "sft", "init.data": "rows.jsonl"})
    assert with_model_defaults(asked, model(tmp_path / "m", size)).init.learning_rate == rate


@cases("size", [25 * M, 135 * M, 600 * M, 7 * B])
@cases("context", [64, 1024, 8192, 10**6, None])
@cases("device", ["cpu", "cuda"])
@cases("turns", [None, 1, 50])
def test_values_are_possible_together(size, context, device, turns, tmp_path):
    folder = model(tmp_path / "m", size, context=context)
    asked = load_config(None, {"engine.device": device})
    found = with_model_defaults(asked, folder, turns=turns)
    engine = found.own_engine
    assert load_config(None, Config.model_validate(found.model_dump()).model_dump()) == found
    assert 16 <= engine.max_model_len <= min(context or 32_768, 32_768)
    assert engine.max_model_len <= found.trainer.max_tokens_per_microbatch
    assert found.rollout.max_tokens < engine.max_model_len
    assert found.rollout.max_tokens <= found.algo.max_tokens <= engine.max_model_len
    assert 1 <= engine.max_num_seqs <= 128
    assert 64 <= found.eval.num_tasks <= 1024
    assert engine.stall_timeout_s >= 60
    assert found.rollout.turn_timeout_s <= engine.request_timeout_s
    assert not list(unset_keys(found))


def test_what_is_larger_or_slower_gets_more_time_and_less_work(tmp_path):
    sizes = [25 * M, 135 * M, 600 * M, 7 * B]
    found = [with_model_defaults(Config(), model(tmp_path / str(size), size)) for size in sizes]
    times = [it.own_engine.stall_timeout_s for it in found]
    assert times == sorted(times)
    assert times[-1] > times[0]
    tasks = [it.eval.num_tasks for it in found]
    assert tasks == sorted(tasks, reverse=True)
    assert tasks[0] > tasks[-1]
    heavy = model(tmp_path / "kv", 135 * M, layers=80, kv_heads=64, dim=128, context=32_768)
    assert (
        with_model_defaults(Config(), heavy).own_engine.max_num_seqs
        < found[1].own_engine.max_num_seqs
    )
    gpu = load_config(None, {"engine.device": "cuda"})
    on_gpu = with_model_defaults(gpu, tmp_path / str(135 * M))
    assert on_gpu.rollout.max_tokens > found[1].rollout.max_tokens
    assert on_gpu.own_engine.stall_timeout_s == 60


def test_what_is_set_stays_and_others_follow_it(tmp_path):
    folder = model(tmp_path / "m", 135 * M)
    asked = {
        "rollout.max_tokens": 64,
        "eval.num_tasks": 7,
        "trainer.max_tokens_per_microbatch": 2048,
    }
    found = with_model_defaults(load_config(None, asked), folder, turns=6)
    values = (found.rollout.max_tokens, found.eval.num_tasks)
    assert values == (64, 7)
    assert found.own_engine.max_model_len == 2048
    assert found.algo.max_tokens == 6 * 64
    long = with_model_defaults(load_config(None, {"engine.max_model_len": 6000}), folder)
    assert long.trainer.max_tokens_per_microbatch == 6000
    even_here = with_model_defaults(
        load_config(None, {"engine.max_model_len": 6000}), BUNDLED_MODELS["bundled/math"]
    )
    assert even_here.trainer.max_tokens_per_microbatch == 6000


def test_a_text_model_inside_another_is_read(tmp_path):
    folder = model(tmp_path / "m", 135 * M, context=None)
    about = {"text_config": {"max_position_embeddings": 512, "num_hidden_layers": 2}}
    (folder / "config.json").write_text(json.dumps(about))
    assert with_model_defaults(Config(), folder).own_engine.max_model_len == 512


@cases(
    "about, length",
    [
        ({"sliding_window": 1024}, 1024),
        ({"sliding_window": 1024, "use_sliding_window": False}, 2560),
        ({"sliding_window": 4096}, 2560),
        ({"sliding_window": None}, 2560),
    ],
    ids=range(4),
)
def test_a_context_ends_with_the_window_that_the_engine_can_cache(about, length, tmp_path):
    folder = model(tmp_path / "m", 135 * M, **about)
    assert with_model_defaults(Config(), folder).own_engine.max_model_len == length
    vllm = load_config(None, {"engine.type": "vllm"})
    assert with_model_defaults(vllm, folder).own_engine.max_model_len == 2560


def test_the_table_has_each_value_with_its_reason_and_only_those_left_unset(tmp_path):
    said: list[str] = []
    asked = load_config(None, {"rollout.max_tokens": 99})
    found = with_model_defaults(asked, model(tmp_path / "m", 135 * M), say=said.append)
    head, *rows = said[0].splitlines()
    assert "135M parameters, 8,192 positions, a CPU" in head
    assert "--section.key=VALUE" in head
    told = {row.split()[0]: row.split()[1] for row in rows}
    assert "rollout.max_tokens" not in told
    assert told["engine.max_model_len"] == str(found.own_engine.max_model_len)
    assert all(len(row.split()) > 3 for row in rows)
    assert with_model_defaults(found, Path("/nowhere"), say=said.append) == found
    assert len(said) == 1


def test_a_recorded_configuration_keeps_its_values(tmp_path):
    found = with_model_defaults(Config(), model(tmp_path / "m", 135 * M), turns=3)
    file = tmp_path / "config.toml"
    file.write_text(dump_toml(found))
    assert with_model_defaults(load_config(file), model(tmp_path / "other", 7 * B)) == found
    overridden = load_config(Config(), {"seed": 5})
    assert set(unset_keys(overridden)) == set(unset_keys(Config()))


def test_a_model_served_elsewhere_gets_room_for_its_replies():
    asked = load_config(None, {"engine.type": "openai", "model.path": "m"})
    found = with_model_defaults(asked, None)
    assert (found.rollout.max_tokens, found.rollout.turn_timeout_s) == (1024, 120)


@cases("gpus", [0, 4])
def test_a_slurm_job_gets_what_fits_its_nodes(gpus, tmp_path):
    asked = load_config(None, {"cluster.type": "slurm", "cluster.gpus_per_node": gpus})
    found = with_model_defaults(asked, model(tmp_path / "m", 135 * M))
    assert found.rollout.max_tokens == (1024 if gpus else 256)


def test_a_damaged_model_is_refused(tmp_path):
    folder = model(tmp_path / "m", 30 * M)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        with_model_defaults(Config(), folder)
    with pytest.raises(ConfigError, match="no weights"):
        with_model_defaults(Config(), tmp_path)


@cases(
    "named, asked, found",
    [
        ("chat_template.jinja", {}, True),
        ("tokenizer_config.json", {}, True),
        ("additional_chat_templates/tool_use.jinja", {}, True),
        ("README.md", {}, False),
        ("chat_template.jinja", {"gateway.date": "2026-11-28"}, "2026-11-28"),
        ("chat_template.jinja", {"gateway.date": ""}, ""),
    ],
    ids=range(6),
)
def test_the_date_in_prompts_is_the_moment_at_which_the_run_begins(tmp_path, named, asked, found):
    folder = model(tmp_path / "m", M)
    (folder / named).parent.mkdir(exist_ok=True)
    (folder / named).write_text("{{ strftime_now('%d') }}")
    date = with_model_defaults(load_config(None, asked), folder).gateway.date
    assert date == found if isinstance(found, str) else bool(date) == found
    (tmp_path / "config.toml").write_text(
        dump_toml(with_model_defaults(load_config(None, asked), folder))
    )
    kept = load_config(tmp_path / "config.toml")
    assert with_model_defaults(kept, folder) == kept


def test_a_date_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"gateway\.date.*expected a date, as 2026-11-28"):
        load_config(None, {"gateway.date": "today"})
