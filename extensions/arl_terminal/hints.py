"""Hints for unknown names: the names that other trainers and harnesses use, the options of an
environment, recipes, and models."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, near_names

from .hub import did_you_mean, remedy

_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate", "actor_lr"), "--trainer.learning_rate"),
    **dict.fromkeys(("max_steps", "num_steps", "train_steps", "iterations"), "--steps"),
    **dict.fromkeys(("output_dir", "run_name", "experiment_name", "save_dir"), "--run"),
    **dict.fromkeys(("model_name", "model_name_or_path", "pretrain"), "--model"),
    **dict.fromkeys(("env_id", "environment", "task"), "--env"),
    **dict.fromkeys(("dataset", "dataset_name", "train_file", "prompt_data"), "--data"),
    **dict.fromkeys(
        ("num_generations", "n_samples_per_prompt", "group_size"), "--rollout.group_size"
    ),
    **dict.fromkeys(
        ("max_completion_length", "max_new_tokens", "max_tokens"), "--rollout.max_tokens"
    ),
    **dict.fromkeys(("max_seq_len", "max_length", "max_model_len"), "--engine.max_model_len"),
    **dict.fromkeys(("kl", "beta", "kl_coef", "init_kl_coef", "kl_beta"), "--algo.kl.coef"),
    **dict.fromkeys(("report_to", "logger", "trackers"), "--logging.trackers"),
    **dict.fromkeys(("wandb_project", "project_name"), "--logging.project"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "--trainer.max_grad_norm"),
    **dict.fromkeys(("save_steps", "save_freq"), "--trainer.checkpoint_every"),
    **dict.fromkeys(("eval_steps", "test_freq"), "--eval.every"),
    **dict.fromkeys(("weight_decay",), "--trainer.weight_decay"),
    **dict.fromkeys(("lora_r", "lora_rank", "use_peft"), "--lora.rank"),
    **dict.fromkeys(("num_gpus", "n_gpus", "nproc_per_node"), "--trainer.num_ranks"),
    **dict.fromkeys(("resume_from_checkpoint", "resume_from"), "--resume"),
    **dict.fromkeys(("verbose", "debug"), "-v"),
    **dict.fromkeys(("quiet", "silent"), "-q"),
    **dict.fromkeys(("loss_type",), "--algo.loss"),
    **dict.fromkeys(("algorithm", "algo", "recipe", "adv_estimator"), "--preset"),
}
"""The flag or key for what others call it."""
_WITH_REASON: Mapping[str, str] = {
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size"),
        "a batch has --rollout.groups_per_batch tasks, each played --rollout.group_size times",
    ),
    **dict.fromkeys(
        ("num_train_epochs", "num_epochs", "epochs", "total_epochs"),
        "a run has --steps batches; --trainer.epochs is the number of passes over each batch",
    ),
    **dict.fromkeys(
        ("epsilon", "clip_range", "cliprange", "clip_eps"),
        "--algo.clip_low and --algo.clip_high are the distances of the ratio from 1",
    ),
    "gradient_accumulation_steps": "a batch is split into optimizer steps by "
    "--trainer.num_minibatches, and by memory into microbatches on its own",
    "mini_batch_size": "--trainer.num_minibatches is the number of optimizer steps a batch",
}
"""The explanations of what others divide in another way."""
_OF_EVAL: Mapping[str, str] = {
    **dict.fromkeys(("num_examples", "num_tasks", "limit"), "-n"),
    **dict.fromkeys(("rollouts_per_example", "samples", "num_samples", "epochs"), "-r"),
    **dict.fromkeys(("api_base_url", "base_url", "api_base"), "--engine.base_url"),
    **dict.fromkeys(("temperature",), "--eval.temperature"),
}
_PRESETS: Mapping[str, str] = {
    "ppo": "ppo-critic is PPO with a critic; grpo clips in the same way and compares the episodes "
    "of a group in place of a critic",
    "reinforce": "reinforce++ and rloo are policy gradients, with a batch and a leave-one-out "
    "baseline",
    "gae": "ppo-critic and vapo estimate advantages by GAE",
    "a2c": "ppo-critic has a critic",
    "dpo": "this package trains on episodes that it samples; `arl export --pairs` writes pairs of "
    "episodes for DPO elsewhere",
    "sft": "--init sft trains on conversations before the run (--data FILE)",
    "lora": "--lora.rank=16 trains an adapter with any of the presets",
}
"""The recipe that is meant by the name of another algorithm."""


_MOST_KEYS = 6
"""The most keys of a section that a hint shows."""


def hint(kind: str, name: str, given: Mapping[str, Any]) -> str:
    """Return what may have been meant by an unknown name, or the remedy for a failed download; ""
    if that is not known here."""
    if kind == "flag":
        return _of_flag(name.replace("-", "_").lower(), given)
    if kind == "word":
        return _of_word(name, given)
    if kind in ("env", "agent", "sandbox"):
        return _of_file(name) or (_of_gymnasium(name) if kind == "env" else "")
    if kind == "preset":
        return _of_preset(name.lower())
    if kind == "download":
        return remedy(name, **given)
    return did_you_mean(name) if kind == "model" else ""


def _of_flag(name: str, given: Mapping[str, Any]) -> str:
    if "config" not in given:
        return ""
    if given["command"] == "eval" and name in _OF_EVAL:
        return f"did you mean {_OF_EVAL[name]}?"
    if keys := _keys(name):
        return f"{name} is a section: give one of its keys, {keys}"
    if option := _option(name, given.get("env")):
        return option
    if name in _WITH_REASON:
        return _WITH_REASON[name]
    flag = _OF_OTHERS.get(name, "")
    has = "." in flag or flag.strip("-") in given or len(flag) == 2
    return f"did you mean {flag}?" if flag and has else ""


def _keys(section: str) -> str:
    """Return the flags of the keys of a section of the configuration; "" if there is none of that
    name, or one value can stand for it."""
    from agentgym_rl.config import Config, fields_of, section_types

    field = fields_of(Config).get(section)
    kinds = section_types(field) if field else ()
    if len(kinds) != 1 or getattr(kinds[0], "short", ""):
        return ""
    keys = [*fields_of(kinds[0])]
    shown = [f"--{section}.{key}" for key in keys[:_MOST_KEYS]]
    return ", ".join([*shown, f"… (`--help {section}`)"] if len(keys) > _MOST_KEYS else shown)


def _of_file(name: str) -> str:
    """Return a hint if an id is the name of a file here, or of a class with a dot before it."""
    path = name.removesuffix(".py").removeprefix("./")
    file = Path(f"{path}.py")
    if file.is_file():
        module = path.replace("/", ".")
        known = [f"{module}:{each}" for each in _classes(file)]
        return f"{file} is a module: name the class in it, as in {', '.join(known) or module}" + (
            "" if known else ":NAME"
        )
    module, dot, last = name.rpartition(".")
    is_here = dot and Path(f"{module.replace('.', '/')}.py").is_file()
    return f"did you mean {module}:{last}?" if is_here else ""


def _classes(file: Path) -> list[str]:
    """Return the names of the classes at the top of a Python file, without importing it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def _of_gymnasium(name: str) -> str:
    """Return a hint for an id that has the form of Gymnasium's, as in FrozenLake-v1."""
    if not re.fullmatch(r"(?:\w+/)?[A-Z]\w*-v\d+", name):
        return ""
    try:
        from gymnasium import registry
    except ImportError:
        return f"did you mean gymnasium:{name}? It needs the package gymnasium"
    near = [name] if name in registry else near_names(name, registry)
    return f"did you mean gymnasium:{near[0]}?" if near else ""


def _of_word(name: str, given: Mapping[str, Any]) -> str:
    """Return a hint for a word without dashes: an environment, as in `vf-eval ENV`, or a file."""
    from agentgym_rl.gym import spec

    if given.get("env", "") is None:
        with contextlib.suppress(ConfigError):
            return f"did you mean --env {name}?" if spec(name) else ""
    is_file = given.get("config", "") is None and Path(name).suffix in (".toml", ".yaml", ".yml")
    return f"did you mean --config {name}?" if is_file else ""


def _option(name: str, env: str | None) -> str:
    """Return a hint if the environment that is named has such an option."""
    known = _options(env) if env else ()
    return f"did you mean --env.options.{name}, an option of {env}?" if name in known else ""


def _options(env: str) -> Collection[str]:
    """Return the names of the options of an environment, by its parameters, or by its refusal of an
    unknown option if it hands them on."""
    from agentgym_rl.gym import spec

    try:
        parameters = inspect.signature(spec(env).load()).parameters.values()
        if not any(it.kind == it.VAR_KEYWORD for it in parameters):
            return [it.name for it in parameters]
        spec(env).make(no_such_option=None)
    except Exception as error:  # foreign code; the run itself shows its errors
        return re.findall(r"\b(\w+)=", str(error).partition("; it takes ")[2])
    return ()


def _of_preset(name: str) -> str:
    from agentgym_rl.config import preset_names

    names = preset_names()
    said = _PRESETS.get(name)
    return f"{said}. There are {', '.join(names)}" if said else ""
