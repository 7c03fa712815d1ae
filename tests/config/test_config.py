"""The configuration: near matches, overrides, round trips, explained errors, no dead keys."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from arl_endpoints.endpoint import OpenAIEngineConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentgym_rl import config as config_module
from agentgym_rl.config import (
    Config,
    MaskCorrection,
    Section,
    dump_toml,
    free_keys,
    load_config,
    section_types,
)
from agentgym_rl.config.file import layered
from agentgym_rl.core import AdapterKeys, ConfigError, differences
from tests.kit.cases import cases


def refusal(overrides: dict | None = None, *, path: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "config.toml").write_text(text)
        return tmp_path / "config.toml"

    return write


def test_defaults():
    assert load_config() == Config()


@cases(
    "wrong, right",
    [
        ("rolout", "rollout"),
        ("rollout.max_stalenes", "rollout.max_staleness"),
        ("trainer.lerning_rate", "trainer.learning_rate"),
        ("algo.behavior_correction.hihg", "algo.behavior_correction.high"),
        ("rollout.nothing_like_it_at_all_zzz", "allowed: groups_per_batch"),
    ],
)
def test_an_unknown_key_suggests_the_near_match(wrong, right):
    message = refusal({wrong: 1})
    assert f"unknown key {wrong}" in message
    assert right in message


def test_an_unknown_key_of_a_file_is_refused_too(write):
    assert "did you mean engine.max_num_seqs?" in refusal(path=write("[engine]\nmax_num_seq = 4\n"))


def test_the_near_match_comes_from_the_named_correction():
    message = refusal({"algo.behavior_correction": {"type": "clamp", "capp": 2}})
    assert "did you mean algo.behavior_correction.cap?" in message


@cases(
    "key, text, value",
    [
        ("rollout.max_staleness", "4", 4),
        ("trainer.learning_rate", "1e-4", 1e-4),
        ("trainer.betas", "[0.9, 0.95]", (0.9, 0.95)),
        ("algo.naive", "true", True),
        ("algo.baseline", "leave_one_out", "leave_one_out"),
        ("algo.baseline", '"leave_one_out"', "leave_one_out"),
        ("env.id", "own_env:OwnEnv", "own_env:OwnEnv"),
        ("run", "2026", "2026"),
        ("run", "2026-11-21", "2026-11-21"),
        ("run", '"runs/x"', "runs/x"),
        ("model.revision", "1234567", "1234567"),
    ],
)
def test_an_override_is_a_toml_literal_or_plain_text(key, text, value):
    found = load_config(overrides={key: text})
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


def test_overrides_go_on_top_of_the_file(write):
    path = write("steps = 7\n[rollout]\nmax_staleness = 1\ngroup_size = 4\n")
    found = load_config(path, {"rollout.group_size": "2"})
    assert (found.steps, found.rollout.max_staleness, found.rollout.group_size) == (7, 1, 2)


def test_rows_named_later_take_the_place_of_those_of_the_file(write):
    hub = '{ dataset = "a/b", config = "main", revision = "c0ffee", train_split = "train" }'
    path = '{ path = "a.jsonl", eval_path = "b.jsonl", eval_fraction = 0.2 }'
    wrong = []
    for options, later, expected in (
        (f"rows = {hub}", {"rows.path": "x.jsonl"}, {"rows": {"path": "x.jsonl"}}),
        (f"rows = {hub}", {"data": "x.jsonl"}, {"rows": {}, "data": "x.jsonl"}),
        (f"rows = {hub}", {"rows.dataset": "c/d"}, {"rows": {"dataset": "c/d"}}),
        (f"rows = {hub}", {"rows": '{ path = "x" }'}, {"rows": {"path": "x"}}),
        (
            f"rows = {hub}",
            {"rows.dataset": "a/b", "rows.config": "small"},
            {
                "rows": {"dataset": "a/b", "config": "small", "revision": "c0ffee"}
                | {"train_split": "train"}
            },
        ),
        (
            f"rows = {path}",
            {"rows.dataset": "c/d", "rows.config": "main"},
            {"rows": {"dataset": "c/d", "config": "main", "eval_fraction": 0.2}},
        ),
        (
            f"rows = {path}",
            {"data": "x.jsonl"},
            {"data": "x.jsonl", "rows": {"eval_path": "b.jsonl", "eval_fraction": 0.2}},
        ),
        (
            'data = "a.jsonl"\neval_data = "b.jsonl"',
            {"rows.path": "x.jsonl"},
            {"eval_data": "b.jsonl", "rows": {"path": "x.jsonl"}},
        ),
        (
            'data = "a.jsonl"\neval_data = "b.jsonl"',
            {"rows.dataset": "c/d"},
            {"rows": {"dataset": "c/d"}},
        ),
        (
            'data = "a.jsonl"\neval_data = "b.jsonl"',
            {"rows.eval_path": "x.jsonl"},
            {"data": "a.jsonl", "rows": {"eval_path": "x.jsonl"}},
        ),
        (f"rows = {hub}", {"eval_data": "x.jsonl"}, {"rows": {}, "eval_data": "x.jsonl"}),
        (f"rows = {hub}", {"rows.eval_path": "x"}, {"rows": {"eval_path": "x"}}),
        (f"rows = {hub}\nlevel = 2", {"level": "3"}, None),
    ):
        file = write(f'[env]\nid = "math"\n[env.options]\n{options}\n')
        overrides = {f"env.options.{key}": value for key, value in later.items()}
        found = dict(load_config(file, overrides).env.options)
        expected = expected or dict(load_config(file).env.options) | {"level": 3}
        if found != expected:
            wrong.append((options, later, found))
    assert wrong == []


def test_options_take_any_key():
    found = load_config(overrides={"env.options.level": "2", "env.options.deep.er": "x"})
    assert found.env.options == {"level": 2, "deep": {"er": "x"}}


def test_one_bound_of_the_default_correction_can_be_set_alone():
    found = load_config(overrides={"algo.behavior_correction.high": "3"})
    assert found.algo.behavior_correction == MaskCorrection(high=3.0)


@cases(
    "overrides, said",
    [
        ({"steps": "0"}, ["steps", "at least 1", "got 0"]),
        ({"trainer.learning_rate": "fast"}, ["trainer.learning_rate", "number", "'fast'"]),
        ({"engine.type": "magic"}, ["engine.type", "embedded", "'magic'"]),
        ({"rollout": "math"}, ["rollout", "a table of keys", "'math'"]),
        ({"rollout": "math", "rollout.shuffle": "x"}, ["rollout", "not a section"]),
        ({"algo.behavior_correction.type": "maks"}, ["behavior_correction", "'maks'", "'mask'"]),
    ],
)
def test_a_bad_value_is_explained(overrides, said):
    message = refusal(overrides)
    assert all(part in message for part in said), message


TO_START = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial"}
CRITIC = {"algo.baseline": "critic", "algo.scale": "none"}


@cases(
    "overrides, said",
    [
        (
            {"algo.loss": "reinforce", "algo.ratio": "row"},
            "ratio 'row' does nothing unless loss is ppo, ",
        ),
        ({"algo.loss": "gspo", "algo.ratio": "token"}, "it is ppo"),
        ({"algo.sapo.tau_bad": 2.0}, "sapo.tau_bad does nothing unless loss is 'sapo', and it"),
        ({"algo.dro_beta": 2.0}, "dro_beta 2.0 does nothing unless loss is 'dro'"),
        ({"algo.divergence_limit": 0.1}, "unless loss is 'dppo'"),
        (
            {"algo.scale": "none", "algo.std.eps": 1e-5},
            "unless scale is a standard deviation of rewards",
        ),
        ({"algo.scale": "leave_one_out_std", "algo.std.of": "centred"}, "leave it out"),
        ({"algo.baseline": "batch_mean", "algo.scale": "leave_one_out_std"}, "use leave_one_out"),
        ({"algo.whiten.eps": 1e-5}, "whiten.eps does nothing unless whiten.over is"),
        ({"algo.covariance.low": 2.0}, "low 2.0 does nothing unless rule is 'clip'"),
        (
            {"algo.covariance": {"rule": "kl", "low": 2.0}},
            "low 2.0 does nothing unless rule is 'clip'",
        ),
        (
            {"algo.covariance": {"rule": "clip", "coef": 2.0}},
            "coef 2.0 does nothing unless rule is 'kl'",
        ),
        ({"algo.covariance": {"rule": "clip", "low": 5.0}}, "low 5.0 is not below high 5.0"),
        (
            {"algo.behavior_correction": {"type": "clamp", "floor": 6.0}},
            "floor 6.0 exceeds cap 5.0",
        ),
        ({"algo.behavior_correction": {"type": "clamp", "weight": "none"}}, "clamps nothing"),
        ({"algo.behavior_correction": {"weight": "none", "cap": 2.0}}, "cap 2.0 does nothing"),
        (
            {"algo.behavior_correction": {"type": "moment_mask"}, "algo.naive": "true"},
            "behavior_correction.type does nothing unless naive is false",
        ),
        ({"algo.naive": "true", "algo.behavior_correction.high": 2.0}, "unless naive is false"),
        ({"algo.kl.estimator": "k1", "algo.kl.clamp": 9}, "kl.clamp, kl.estimator does nothing"),
        ({"algo.kl.reference": "initial"}, "kl.reference does nothing unless kl.coef is above 0"),
        ({"algo.loss": "reinforce", "algo.clip_high": 0.3}, "clip_high 0.3 does nothing"),
        ({"algo.loss": "m:f", "algo.clip_low": 0.3}, "clip_low 0.3 does nothing"),
        ({"algo.reward.parts": {"a": 1.0, "b": 0.0}}, "parts has b = 0, which does nothing"),
        ({"algo.reward.overlong_limit": 9}, "overlong_limit 9 does nothing unless overlong_pen"),
        ({"algo.reward.overlong_buffer": 9}, "overlong_buffer 9 does nothing"),
        ({"trainer.schedule": "constant", "trainer.learning_rate_floor": 0}, "unless schedule"),
        ({"trainer.momentum": 0.5}, "unless optimizer is 'muon'"),
        (CRITIC | {"algo.critic.warmup_steps": 40}, "none of the 40 batches to the policy"),
        ({"algo.behavior_correction.low": 1.5}, "on which both policies agree, whose ratio is 1"),
        (
            {"algo.behavior_correction": {"type": "sequence_mask", "measure": "k3"}},
            "low 0.9 and high 1.1 drop every token on which both policies agree, whose k3 is 0",
        ),
        ({"algo.clip_high": "true"}, "clip_high is no switch, and True is for switches alone"),
        (
            TO_START | {"algo.kl.on_policy": "true", "algo.kl.gradient": "score"},
            "leave one of them out",
        ),
        (
            {"algo.kl.placement": "token", "algo.kl.gradient": "k2"},
            "gradient 'k2' does nothing unless placement is 'loss'",
        ),
        ({"algo.reward": {"parts": {"a": 1.0}, "clip": 2.0}}, "clip shapes the whole reward"),
        ({"algo.reward.overlong_capped": "false"}, "unless overlong_penalty is above 0"),
    ],
)
def test_what_would_be_ignored_is_refused(overrides, said):
    assert said in refusal(overrides)


@cases(
    "overrides, said",
    [
        ({"algo.baseline": "critic"}, "scale 'group_std' has no meaning: a critic judges tokens"),
        (CRITIC | {"algo.shuffle_advantages": "true"}, "use another baseline for the negative"),
        ({"algo.critic.gae_lambda": "0.9"}, "critic.gae_lambda does nothing unless baseline is"),
        (CRITIC | {"algo.critic": {"gae_lambda": 0.9, "length_alpha": 0.1}}, "replaces gae_lambda"),
        (CRITIC | {"algo.whiten.over": "episodes"}, "use tokens with scale none"),
        (
            CRITIC | {"algo.scale": "batch_std", "algo.whiten.over": "tokens"},
            "use tokens with scale",
        ),
        (CRITIC | {"algo.reward.parts": {"a": 1.0}}, "leave reward.parts out"),
        (CRITIC | TO_START | {"algo.kl.placement": "token"}, "use kl.placement reward"),
        ({"trainer.critic_learning_rate": "1e-3"}, "without a critic: algo.baseline is 'mean'"),
    ],
)
def test_a_critic_is_either_used_or_not(overrides, said):
    assert said in refusal(overrides)


@cases(
    "overrides, said",
    [
        ({"engine.base_url": "api.example.com"}, "engine.base_url: expected http"),
        ({"engine.send": "temperature,seed,seed"}, "names a parameter twice"),
        ({"engine.send": "max_tokens,max_completion_tokens"}, "give one of them"),
        ({"engine.extra_body.temperature": "1"}, "extra_body sets temperature, which is set else"),
        ({"engine.max_model_len": "9"}, "unknown key engine.max_model_len"),
        ({"weights.transport": "nccl"}, "needs engine.type 'vllm' or 'sglang'"),
        (
            {"engine.type": "sglang", "weights.transport": "ipc", "rollout.interrupt": "wait"},
            "'wait' needs weights.transport 'shm'",
        ),
    ],
)
def test_what_an_endpoint_cannot_have_is_refused(overrides, said):
    assert said in refusal({"engine.type": "openai"} | overrides)


@cases(
    "overrides, said",
    [
        ({"engine.type": "embedded"}, "needs engine.type 'vllm' or 'sglang'"),
        ({"engine.type": "sglang"}, "set rollout.interrupt to abort or wait"),
        (
            {"engine.type": "sglang", "rollout.interrupt": "recompute"},
            "set rollout.interrupt to abort or wait",
        ),
        (
            {
                "engine.type": "sglang",
                "rollout.interrupt": "abort",
                "weights.transport": "gloo",
            },
            "set weights.transport to shm",
        ),
    ],
)
def test_an_adapter_beside_its_base_is_refused_where_it_cannot_be_exact(overrides, said):
    assert said in refusal({"lora.rank": "4", "lora.serve": "adapter"} | overrides)


MOVING = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial", "algo.kl.refresh_every": 2}


@cases(
    "overrides, said",
    [
        ({"lora.rank": 4}, "lora.rank 4: the reference has no adapter, so it cannot move"),
        (
            {"lora.rank": 4, "lora.serve": "adapter", "engine.type": "vllm"},
            "lora.rank 4: the reference has no adapter, so it cannot move",
        ),
        (
            {"algo.kl.coef": 0, "algo.kl.reference": ""},
            "kl.refresh_every does nothing unless kl.coef",
        ),
        (
            {"algo.kl.refresh_every": 0, "algo.kl.ema": 0.9},
            "ema 0.9 does nothing unless refresh_every",
        ),
    ],
)
def test_a_reference_that_cannot_move_is_refused(overrides, said):
    assert load_config(None, MOVING).algo.kl.refresh_every == 2
    assert said in refusal(MOVING | overrides)


def test_an_adapter_beside_its_base():
    adapter = {"lora.rank": 4, "lora.serve": "adapter"}
    for more in ({"engine.type": "vllm"}, {"engine.type": "sglang", "rollout.interrupt": "abort"}):
        assert load_config(None, adapter | more).lora.serve == "adapter"


@cases(
    "overrides",
    [
        {"engine.api_key_env": "sk-0123"},
        {"engine.api_key_env": "gsk_0123"},
        {"engine.base_url": "https://me:sk-0123@host/v1"},
        {"engine.base_url": "https://host/v1?key=sk-0123"},
    ],
)
def test_a_key_in_the_configuration_is_refused_and_not_repeated(overrides):
    assert "0123" not in refusal({"engine.type": "openai"} | overrides)


def test_an_endpoint_takes_the_place_of_the_file_s_engine(write):
    path = write("[engine]\ntype = 'vllm'\npython = 'x'\n")
    assert load_config(path, {"engine.type": "openai"}).engine == OpenAIEngineConfig()


def test_an_endpoint_is_no_engine_of_our_own():
    with pytest.raises(ConfigError, match=r"(?s)`arl eval` alone.*such as --engine=embedded"):
        _ = load_config(overrides={"engine.type": "openai"}).own_engine


TAUGHT = {"algo.teacher.models": "bundled/math", "algo.teacher.reward_coef": 0}
ALONE = {"rollout.group_size": 1, "algo.baseline": "batch_mean", "algo.scale": "batch_std"}


@cases(
    "overrides, said",
    [
        ({"rollout.max_staleness": 1, "rollout.lookahead": 2}, "lookahead 2 exceeds"),
        ({"algo.baseline": "none"}, "use batch_std"),
        ({"algo.behavior_correction.low": 6.0}, "low 6.0 is not below high 5.0"),
        ({"rollout.group_size": 1}, "trains nothing"),
        (ALONE | {"algo.baseline": "leave_one_out", "algo.scale": "none"}, "trains nothing"),
        (ALONE | {"algo.scale": "group_std"}, "trains nothing"),
        ({"algo.teacher.coef": 0.5}, "coef without models does nothing"),
        (TAUGHT | {"algo.teacher.timeout_s": 9}, "timeout_s without a served teacher"),
        (TAUGHT | {"algo.teacher.top_k": 9}, 'top_k 9 needs placement "loss"'),
        (
            {"algo.teacher": {"models": "http://x", "placement": "loss", "top_k": 9}},
            "http://x is a server",
        ),
        (
            TAUGHT | {"algo.teacher.placement": "loss", "algo.teacher.horizon": "row"},
            'horizon "row" needs placement reward',
        ),
        (TAUGHT | {"rollout.should_accept": "mixed_rewards"}, "rewards that do not count"),
        (
            TAUGHT | {"algo.reward.scale": 2},
            "reward.scale does nothing unless teacher.reward_coef is",
        ),
        (TAUGHT | {"algo.turn_discount": 0.5}, "turn_discount 0.5 does nothing unless teacher"),
        (TAUGHT | {"algo.whiten.over": "tokens"}, "whiten.over does nothing unless teacher"),
        (TAUGHT | {"rollout.group_reward": "a:b"}, "pays rewards that do not count"),
        (TAUGHT | {"algo.shuffle_advantages": True}, "shuffle_advantages True does nothing"),
        (
            TAUGHT | {"algo.baseline": "critic", "algo.scale": "none"},
            "baseline 'critic' does nothing",
        ),
        ({"algo.teacher.models": "http://x", "rollout.temperature": 0.5}, "at temperature 1"),
        ({"algo.teacher.models": [{"model": "a", "onyl": {}}]}, "onyl"),
        ({"algo.teacher.models": "http://host:99999"}, "models.0: expected http://host:port"),
        ({"rollout.seats": {"x": "policy", "o": "url:http://h:x/v1#m"}}, "url:http://HOST/v1#"),
        (
            {"engine.max_model_len": 8192, "trainer.max_tokens_per_microbatch": 4096},
            "exceeds trainer.max_tokens_per_microbatch 4096",
        ),
    ],
)
def test_an_impossible_combination_is_refused(overrides, said):
    assert said in refusal(overrides)


@cases(
    "engine, trainer, computes",
    [
        ("float32", None, "float32"),
        ("bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_the_trainer_computes_as_the_engine_unless_told(engine, trainer, computes):
    named = {} if trainer is None else {"trainer.dtype": trainer}
    assert load_config(None, {"engine.dtype": engine} | named).compute_dtype == computes


def test_teachers_are_named_alone_or_with_their_tasks(write):
    text = (
        "[[algo.teacher.models]]\nmodel = 'a'\nweight = 2\nonly = { env_id = 'math', level = 3 }\n"
    )
    (one,) = load_config(write(text)).algo.teacher.models
    assert one.teaches("math", {"level": 3, "more": 1})
    assert not any(one.teaches(*it) for it in [("code", {"level": 3}), ("math", {})])
    found = load_config(None, {"algo.teacher.models": "a,http://b"}).algo.teacher
    assert [(it.model, it.is_served) for it in found.models] == [("a", False), ("http://b", True)]
    assert found.weights("any", {}) == [1, 1]
    again = load_config(write(dump_toml(load_config(write(text)))))
    assert again == load_config(write(text))


def test_a_teacher_alone_teaches_groups_of_one():
    assert load_config(None, TAUGHT | {"rollout.group_size": 1}).rollout.group_size == 1


def test_groups_of_one_train_when_compared_in_the_batch():
    assert load_config(overrides=ALONE).rollout.group_size == 1
    assert load_config(overrides=ALONE | {"algo.baseline": "none", "algo.scale": "none"})


def test_what_is_wrong_between_sections_does_not_repeat_the_file():
    message = refusal({"rollout.group_size": 1, "run": "a/long/name"})
    assert "a/long/name" not in message
    assert "Value error" not in message


@pytest.mark.parametrize("text", ["steps = ", "steps = 1\nsteps = 2", "\x00"])
def test_a_broken_file_is_named(write, text):
    assert "config.toml" in refusal(path=write(text))


def test_a_missing_file_is_named(tmp_path):
    assert "absent.toml" in refusal(path=tmp_path / "absent.toml")


OPTIONS = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.-é \"'"), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])  # of a machine that does other things
@given(st.dictionaries(st.text("abc_.-é😀\x7f"), OPTIONS, max_size=4))
def test_options_survive_the_written_file(tmp_path_factory, options):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    config = load_config(overrides={"env.options": options})
    path.write_text(dump_toml(config), encoding="utf-8")
    assert load_config(path) == config


def test_the_resolved_file_is_whole_and_gives_the_same_run(tmp_path):
    config = load_config(
        overrides={
            "seed": "3",
            "run": "runs/été",
            "rollout.lookahead": "1",
            "algo.behavior_correction": {"type": "clamp", "cap": 2.5},
            "trainer.learning_rate": "1e-7",
            "agent.options.max_turns": "3",
        }
    )
    (tmp_path / "config.toml").write_text(dump_toml(config), encoding="utf-8")
    assert load_config(tmp_path / "config.toml") == config


def sections() -> Iterator[type[Section]]:
    for found in [*vars(config_module).values(), *section_types(Config.model_fields["engine"])]:
        if isinstance(found, type) and issubclass(found, Section) and found is not Section:
            yield found


def attributes_read(tree: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


@pytest.mark.slow
def test_every_key_is_read():
    """A key nobody reads is a promise nobody keeps: remove it, or read it."""
    own = Path(config_module.__file__).parent
    folders = [
        own.parent,
        *(own.parents[1] / name for name in ("envs", "agents", "sandboxes", "extensions")),
    ]
    files = [f for folder in folders for f in folder.rglob("*.py") if f.parent != own]
    read = set().union(*(attributes_read(ast.parse(file.read_text())) for file in files))
    # While the configuration is loaded; then the values that they stand for are there.
    read |= {"preset", "allocation"}
    read |= {it.place for it in Config().sections if isinstance(it, AdapterKeys)}  # by adapter_of
    nodes = [node for file in own.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    for node in nodes:  # a property read elsewhere reads for it
        if isinstance(node, ast.FunctionDef) and node.decorator_list and node.name in read:
            read |= attributes_read(node)
    unread = {
        f"{section.__name__}.{name}"
        for section in sections()
        for name in section.model_fields
        if name not in read
    }
    assert sorted(unread) == []


def test_differences_are_named_key_by_key():
    before = {"a": {}, "b": [1, 2], "c": {"x": 1}, "same": {"y": {}}}
    after = {"a": {"slots": 16}, "b": [], "c": {}, "same": {"y": {}}}
    assert differences(before, after) == [
        "a.slots is 16, not unset",
        "b is [], not [1, 2]",
        "c.x is unset, not 1",
    ]
    assert differences(before, after, free=("a", "b", "c.x")) == []


def test_every_free_key_exists_and_every_occasion_has_its_own():
    keys = {occasion: set(free_keys(Config, occasion)) for occasion in ("resume", "eval")}
    names = {".".join(path) for path in _paths(Config)}
    assert all(found <= names for found in keys.values())
    assert "eval" in keys["resume"] - keys["eval"]
    assert "trainer" in keys["eval"] - keys["resume"]


def _paths(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (name,)
        for kind in section_types(field):
            yield from ((name, *inner) for inner in _paths(kind))


SECRETS = (
    "http://user:secret7@host/v1",
    "http://secret7@host:80",
    "https://host/v1?api_key=secret7",
)


@cases("url", SECRETS)
@cases(
    "key, form",
    [
        ("env.id", "openenv:{}"),
        ("rollout.seats", {"x": "policy", "o": "url:{}#name"}),
        ("algo.teacher.models", ["{}"]),
        ("engine.urls", ["{}"]),
        ("env.options", {"judge": {"base_url": "{}"}}),
        ("env.options", {"{}": 1}),
        ("run", "runs/{}"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(key, form, url):
    value = json.loads(json.dumps(form).replace("{}", url))
    said = refusal({key: value, **({"engine.type": "vllm"} if key == "engine.urls" else {})})
    assert "a URL with a password or key in it" in said
    assert "secret7" not in said


def test_urls_without_secrets_are_kept():
    for url in ("http://host:80/v1#m", "https://host/a@b", "https://host/?monkey=1&page=2"):
        assert load_config(None, {"env.options.url": url}).env.options["url"] == url


@cases(
    "text, said",
    [
        ("steps = 4\n[env]\nid = math\n", r': id = math; texts need quotes: id = "math"$'),
        ("model = /data/m\n", r'texts need quotes: model = "/data/m"$'),
        ("steps = 4\nsteps = [3,\n", r"Cannot overwrite|Invalid|Unclosed"),
        ("[env\nid = 'math'\n", r"\(at line 1, column 5\): \[env$"),
    ],
    ids=["text", "path", "list", "table"],
)
def test_an_error_of_toml_shows_its_line(tmp_path, text, said):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(file)


def test_an_unknown_key_names_its_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("steps = 1\n[rollout]\ngroup_sise = 3\n")
    with pytest.raises(ConfigError, match=r"unknown key rollout\.group_sise in .*c\.toml; did you"):
        load_config(file)
    file.write_text("stepz = 1\n")
    with pytest.raises(ConfigError, match=r"unknown key stepz in .*c\.toml; did you mean steps"):
        load_config(file)
    file.write_text("steps = 1\n")
    with pytest.raises(ConfigError, match=r"unknown key rollout\.group_sise; did you"):
        load_config(file, {"rollout.group_sise": 3})
    with pytest.raises(ConfigError, match=r"unknown key stepz; did you"):
        load_config({"stepz": 3})


@cases(
    "wrong, said",
    [
        (
            "[rollout]\ngroup_sise = 4",
            r"unknown key rollout\.group_sise in .*b\.toml; did you mean",
        ),
        ("[rollout]\ngroup_size = 'x'", r"rollout\.group_size: expected a whole .* in .*b\.toml"),
        ("seed = 'x'", r"seed: expected a whole number \(got 'x'\) in .*b\.toml"),
    ],
)
@cases("names", [["b"], ["a", "b"], ["b", "a"], ["a", "b", "c"]])
def test_a_wrong_key_of_several_files_names_its_own(tmp_path, names, wrong, said):
    text = {"a": "steps = 3\n[rollout]\nmax_tokens = 9", "b": wrong, "c": "[eval]\nnum_tasks = 2"}
    files = [tmp_path / f"{name}.toml" for name in names]
    for name, file in zip(names, files, strict=True):
        file.write_text(text[name])
    source = files[0] if len(files) == 1 else layered(Config, files)
    with pytest.raises(ConfigError, match=said):
        load_config(source)


def test_a_wrong_key_that_a_later_file_or_a_flag_gives_has_that_place(tmp_path):
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for file in files:
        file.write_text("seed = 'x'")
    with pytest.raises(ConfigError, match=r"seed: .* in .*b\.toml"):
        load_config(layered(Config, files))
    with pytest.raises(ConfigError, match=r"seed: expected a whole number \(got 'y'\)$"):
        load_config(layered(Config, files), {"seed": "y"})
