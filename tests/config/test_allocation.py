"""The compact form of who computes where, and the keys that it stands for."""

import contextlib

import pytest
from arl_scale.allocation import settings
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.config import dump_toml, load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

KEY = "cluster.allocation"


@cases(
    "text, servers, gpus, ranks",
    [
        ("vllm:d4t2+fsdp:d8", 4, 2, 8),
        ("vllm:t2d4 + fsdp : d8", 4, 2, 8),
        ("fsdp:d8+vllm:d4", 4, 1, 8),
        ("vllm[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4|fsdp[ref]:d4", 2, 1, 4),
    ],
)
def test_it_is_what_the_keys_say(text, servers, gpus, ranks):
    by_keys = load_config(
        None,
        {
            "engine.type": "vllm",
            "engine.num_servers": servers,
            "engine.tensor_parallel_size": gpus,
            "trainer.num_ranks": ranks,
        },
    )
    compact = load_config(None, {KEY: text})
    assert compact.model_copy(update={"cluster": by_keys.cluster}) == by_keys


@cases(
    "text, ranks, mesh",
    [
        ("embedded:d1+fsdp:d2c2t2e2", 8, "c2t2e2"),
        ("embedded:d1+fsdp:d1t2", 2, "t2"),
        ("embedded:d1+fsdp:d4e4", 4, "e4"),
        ("embedded:d1+fsdp:d2c1t1", 2, ""),
    ],
)
def test_ranks_that_share_rows_matrices_and_experts(text, ranks, mesh):
    trainer = load_config(None, {KEY: text}).trainer
    assert (trainer.num_ranks, trainer.mesh) == (ranks, mesh)


@cases(
    "text, tensor, stages, experts, devices",
    [
        ("vllm:d4t2p2e2+fsdp:d8", 2, 2, 2, 4),
        ("vllm:d1p3+fsdp:d1", 1, 3, 1, 3),
        ("vllm:d2t4e4+fsdp:d1", 4, 1, 4, 4),
        ("vllm:d2t4e1p1+fsdp:d1", 4, 1, 1, 4),
        ("sglang:d2t4e2+fsdp:d1", 4, None, 2, 4),
        ("vllm:d1t2p2e2|fsdp:d4", 2, 2, 2, 4),
    ],
)
def test_the_parts_of_a_server(text, tensor, stages, experts, devices):
    engine = load_config(None, {KEY: text}).own_engine
    assert engine.tensor_parallel_size == tensor
    assert getattr(engine, "pipeline_parallel_size", None) == stages
    assert engine.expert_parallel_size == experts
    assert engine.gpus_per_server == devices


@cases(
    "text, says",
    [
        ("sglang:d1t4e3+fsdp:d1", "3 does not divide tensor_parallel_size 4; the nearest .* is 2"),
        ("sglang:d1e2+fsdp:d1", "2 does not divide tensor_parallel_size 1; the nearest .* is 1"),
        ("vllm:d1t4e2+fsdp:d1", "2 with tensor_parallel_size 4.* the nearest is 1"),
        ("vllm:d4e4+fsdp:d1", "the nearest is 1, and 4 needs tensor_parallel_size 4"),
    ],
)
def test_experts_that_do_not_divide_a_server_are_refused_with_the_nearest(text, says):
    with pytest.raises(ConfigError, match=says):
        load_config(None, {KEY: text})


@cases(
    "keys, says",
    [
        ({"engine.routing_replay": "on"}, "vLLM reports no experts of several stages"),
        ({"weights.transport": "ipc"}, "memory of one GPU, and a server has 2 .*; use shm"),
        ({"engine.gpus": [0, 1, 2], "engine.num_servers": 2}, "2 servers of 2 GPUs each need 4"),
        ({"engine.gpus": [0, 1], "eval.every": 1}, "1 of 2 GPUs each engine.gpus needs 4"),
        ({"engine.type": "sglang"}, "pipeline_parallel_size; engine.type 'vllm' has it"),
        ({"engine.type": "embedded"}, "pipeline_parallel_size; engine.type 'vllm' has it"),
        ({"engine.pipeline_paralel_size": 2}, "did you mean engine.pipeline_parallel_size"),
        ({"engine.pipeline_parallel_size": 0}, "pipeline_parallel_size: too small"),
    ],
)
def test_stages_that_a_run_cannot_have_are_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"engine.type": "vllm", "engine.pipeline_parallel_size": 2, **keys})


@cases("flags", [["--pp-size", "2"], ["--pipeline-parallel-size=2"]])
def test_the_flags_of_sglang_are_no_way_to_stages(flags):
    with pytest.raises(ConfigError, match=r"flags has --p.*answers for the weights of the first"):
        load_config(None, {"engine.type": "sglang", "engine.flags": flags})


def test_ranks_that_do_not_divide_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="e3 does not divide 4 ranks; the nearest number is 3"):
        load_config(None, {KEY: "embedded:d1+fsdp:d4e3"})


def test_without_gpus():
    config = load_config(None, {KEY: "embedded:d2+fsdp:d2"})
    assert (config.engine.type, config.engine.num_servers, config.trainer.num_ranks) == (
        "embedded",
        2,
        2,
    )


@cases(
    "text, says, caret",
    [
        ("vllm:d4", "no trainer: expected one, such as fsdp:d1", 7),
        ("fsdp:d4", "no engine", 7),
        ("", "expected a backend, vllm, sglang, embedded, scripted, fsdp", 0),
        ("vllm.d4+fsdp:d4", "expected ':'", 4),
        (
            "other:d4+fsdp:d4",
            "no backend 'other'; allowed: vllm, sglang, embedded, scripted, fsdp",
            0,
        ),
        ("vllm:d04+fsdp:d4", "expected how many, as in d4", 6),
        ("vllm:d0+fsdp:d4", "expected how many", 6),
        ("vllm:d+fsdp:d4", "expected how many", 6),
        ("vllm:+fsdp:d4", "expected a dimension of vllm, such as d4", 5),
        ("vllm:d4d2+fsdp:d4", "dimension 'd' is given twice", 7),
        ("vllm:t2+fsdp:d4", "expected their number, such as vllm:d1", 0),
        ("sglang:d4p2+fsdp:d4", "answers for the weights of the first stage alone", 9),
        ("vllm:d4c2+fsdp:d4", "p (pipeline parallelism", 7),
        ("vllm:d4p0+fsdp:d4", "expected how many", 8),
        ("vllm:d4p2p2+fsdp:d4", "dimension 'p' is given twice", 9),
        ("embedded:d4p2+fsdp:d4", "has one device: use d, or vllm", 11),
        ("embedded:d4e2+fsdp:d4", "has one device: use d, or vllm", 11),
        ("scripted:d4p2+fsdp:d4", "allowed: d (data parallelism", 11),
        ("vllm:d4+fsdp:d4p2", "fsdp has no pipeline", 15),
        ("vllm:d4+fsdp:d4t2t2", "dimension 't' is given twice", 17),
        ("embedded:d4t2+fsdp:d4", "has one device: use d, or vllm", 11),
        ("vllm:d4|fsdp:d2", "same number: vllm has d4 = 4, fsdp d2 = 2", 8),
        ("fsdp:d4|vllm:d1t2", "same number: vllm has d1 x t2 = 2, fsdp d4 = 4", 8),
        ("fsdp:d2e2|vllm:d1t2p2e2", "vllm has d1 x t2 x p2 = 4, fsdp d2 = 2", 10),
        ("vllm:d4|fsdp[critic]:d4+fsdp:d4", "the first trainer must be the policy", 8),
        ("vllm:d4+embedded:d1+fsdp:d4", "one kind of engine", 8),
        ("vllm:d4+fsdp:d4+fsdp:d2", "has to be named, critic or ref", 16),
        ("vllm:d4+fsdp:d4+fsdp[critic]:d4", "'|' before it", 16),
        ("vllm:d4+fsdp:d4|fsdp[critic]:d2", "the policy has d4 = 4, the critic d2 = 2", 16),
        ("vllm:d4+fsdp[policy]:d4", "expected fsdp[actor]", 8),
        ("vllm[a]:d4+fsdp[a]:d4", "the name 'a' is given twice", 16),
        ("vllm[ a ]:d4+fsdp[ a ]:d4", "the name 'a' is given twice", 19),
        ("vllm[4]:d4+fsdp:d4", "expected a name", 5),
        ("vllm:d4+fsdp:d4 and more", "no dimension 'a' of fsdp", 16),
        ("vllm:d4+fsdp:d4, more", "expected '+' or '|'", 15),
        ("vllm:d4+", "expected a backend", 8),
    ],
)
def test_what_is_wrong_is_pointed_at(text, says, caret):
    with pytest.raises(ConfigError) as caught:
        settings(text)
    why, shown, pointer = str(caught.value).splitlines()
    assert says in why
    assert shown == f"    {text}"
    assert pointer.index("^") == 4 + caret


@given(st.text(alphabet="vlmfsdpembta[]:+|0123 d", max_size=30))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(ConfigError):
        assert settings(text)["trainer.num_ranks"] >= 1


@cases(
    "text, type, servers, gpus, ranks",
    [
        ("vllm:d2|fsdp:d2", "vllm", 2, 1, 2),
        ("fsdp:d4 | vllm:d2t2", "vllm", 2, 2, 4),
        ("embedded:d1|fsdp:d1|fsdp[critic]:d1", "embedded", 1, 1, 1),
    ],
)
def test_a_bar_shares_devices_as_the_key_does(text, type, servers, gpus, ranks):
    keys = {
        "engine.type": type,
        "engine.num_servers": servers,
        "trainer.num_ranks": ranks,
        "cluster.colocated": True,
    }
    if type == "vllm":
        keys["engine.tensor_parallel_size"] = gpus
    by_keys, compact = load_config(None, keys), load_config(None, {KEY: text})
    assert compact.cluster.colocated
    assert compact.cluster.model_copy(update={"allocation": ""}) == by_keys.cluster
    assert compact.model_copy(update={"cluster": by_keys.cluster}) == by_keys


@cases(
    "keys, says",
    [
        (
            {"engine.type": "vllm", "engine.num_servers": 2, "engine.tensor_parallel_size": 2},
            r"engine.num_servers 2 x 2 = 4, trainer.num_ranks 1",
        ),
        ({"trainer.num_ranks": 2}, r"engine.num_servers 1 x 1 = 1, trainer.num_ranks 2"),
        ({"engine.type": "vllm", "engine.urls": "http://a:8000"}, "engine.urls names servers"),
        ({"engine.type": "vllm", "weights.transport": "nccl"}, "use shm or gloo"),
        ({"engine.type": "vllm", "engine.gpus": [1]}, r"engine.gpus \[1\] and trainer.gpus \[\]"),
        ({"eval.every": 2}, "start one engine more"),
        ({"engine.type": "openai"}, "is not started here, and cannot sleep"),
    ],
)
def test_what_cannot_share_devices_is_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"cluster.colocated": True, **keys})


def test_the_key_may_not_contradict_the_line():
    assert load_config(None, {KEY: "embedded:d1|fsdp:d1", "cluster.colocated": "true"})
    with pytest.raises(ConfigError, match=r"cluster.colocated is true, and .* makes it false"):
        load_config(None, {KEY: "embedded:d1+fsdp:d1", "cluster.colocated": "true"})


def test_keys_beside_it_may_not_say_otherwise(tmp_path):
    text = "embedded:d2+fsdp:d2"
    assert load_config(None, {KEY: text, "trainer.num_ranks": "2"}).trainer.num_ranks == 2
    with pytest.raises(ConfigError, match=r"trainer.num_ranks is 3, and .* makes it 2"):
        load_config(None, {KEY: text, "trainer.num_ranks": "3"})
    file = tmp_path / "config.toml"
    file.write_text(f'[cluster]\nallocation = "{text}"\n[engine]\nnum_servers = 1\n')
    with pytest.raises(ConfigError, match=r"engine.num_servers is 1, and .* makes it 2"):
        load_config(file)


def test_a_new_one_changes_a_whole_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(dump_toml(load_config(None, {KEY: "embedded:d2+fsdp:d2"})))
    assert load_config(file) == load_config(None, {KEY: "embedded:d2+fsdp:d2"})
    assert load_config(file, {KEY: "embedded:d1+fsdp:d4"}).trainer.num_ranks == 4
    with pytest.raises(ConfigError, match="leave out one of them"):
        load_config(file, {"trainer.num_ranks": 4})
