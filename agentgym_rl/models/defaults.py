"""The defaults that depend on the model: on its size, its context, and the device it runs on.

A key that is left unset gets its value here, once, before anything is started; a run records it.
For a model of the size of the bundled ones it is the default that the configuration names.

The speeds below are about half of those measured with SmolLM2-135M in float32 on one idle core
(docs/plan.md): trainer and engines share memory. Only their magnitudes matter: a limit that is a
few times too long costs nothing.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, Section, may_use_gpu, unset_keys
from agentgym_rl.core import num_parameters, text_settings
from agentgym_rl.core.model_folder import writes_date

log = logging.getLogger(__name__)

_DATE = "gateway.date"
_SMALL = 20e6
"""The number of parameters below which a model counts as small: the bundled ones have 1 to 2e6."""
_LARGE = 10e9
"""The number of parameters from which a checkpoint, 12 bytes each, takes minutes to write."""
_LOST = "what a lost rank costs at most"
_LEARNING_RATES = ((_SMALL, 3e-4), (1e9, 1e-5), (10e9, 5e-6), (math.inf, 1e-6))
"""The pairs of a number of parameters and the default learning rate for models with fewer."""
_DECODED, _READ, _TRAINED = 1e10, 3e10, 2e10
"""The parameters times tokens per second that a CPU core decodes, prefills, and trains."""
_LOADED_S = 10.0
"""The seconds in which a GiB is read from a disk, or written to one."""
_REPLY_CPU, _REPLY_GPU = 256, 1024
_PROMPT, _OBSERVATION, _TURNS = 1024, 128, 4
"""The tokens allowed for a first prompt and for each observation, and the turns of an episode whose
environment names no limit."""
_MOST_TURNS, _LONGEST = 16, 32_768
_MOST_ON_CPU = 32
"""The number of requests decoded together beyond which a CPU decodes no more tokens a second."""
_EVALUATION_S = 1200.0
_FEWEST_TASKS = 64


def with_model_defaults(
    config: Config,
    folder: Path | None,
    *,
    turns: int | None = None,
    say: Callable[[str], object] = log.info,
) -> Config:
    """Return the configuration with a value for every unset key that depends on the model, fit to
    the model in `folder`. `say` is called with a table of the values, unless the model is small.

    Args:
        folder: The model's folder; None: the engine is an external endpoint.
        turns: The most replies of an episode, if known.

    Raises:
        ConfigError: the model has no weights, or they or its config.json are damaged; or there
            is a folder, and the engine is an external endpoint.
    """
    keys = list(unset_keys(config))
    if not keys:
        return config
    model = None
    if folder is not None:
        engine = config.own_engine
        gpu = may_use_gpu(device := engine.runs_on)
        there = config.cluster.kind.has_gpus(config.cluster)
        if there is not None:  # other machines than this one
            gpu = device != "cpu" and there
        model = _Model.read(folder, gpu=gpu, threads=engine.num_threads)
    fit = _Fit(config, keys)
    fit.all(model, turns)
    if folder is not None and writes_date(folder):
        fit.choose_date()
    if text := fit.table(model):
        say(text)
    for key in keys:
        config = _set(config, key.split("."), fit.value(key))
    return config


def _set(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    inner = _set(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: inner})


@dataclass(frozen=True, slots=True)
class _Model:
    """The properties of a model, and of the device it runs on."""

    size: float
    """The number of parameters."""
    context: int
    """The model's context length, in tokens."""
    window: int | None
    """The sliding window of its attention; None: there is none."""
    kv_numbers: int
    """The number of KV cache entries per token."""
    gpu: bool
    threads: int

    @classmethod
    def read(cls, folder: Path, *, gpu: bool, threads: int) -> _Model:
        """Read the properties from the headers of the weights and from config.json."""
        size = num_parameters(folder)
        about = text_settings(folder)

        context = _number(about, "max_position_embeddings", _LONGEST)
        slides = about.get("use_sliding_window", True)
        window = _number(about, "sliding_window", 0) if slides else 0
        return cls(size, context, window or None, _kv_numbers(about), gpu, threads)

    @property
    def small(self) -> bool:
        return self.size < _SMALL

    def __str__(self) -> str:
        size, unit = (self.size / 1e9, "B") if self.size >= 1e9 else (self.size / 1e6, "M")
        where = "a GPU" if self.gpu else "a CPU"
        return f"{size:.3g}{unit} parameters, {self.context:,} positions, {where}"


def _kv_numbers(about: Mapping[str, Any]) -> int:
    """Return the number of KV cache entries per token of a model with these settings."""
    heads = _number(about, "num_attention_heads", 1)
    dim = _number(about, "head_dim", _number(about, "hidden_size", 0) // heads)
    kv_heads = _number(about, "num_key_value_heads", heads)
    return 2 * _number(about, "num_hidden_layers", 1) * kv_heads * dim


def _number(about: Mapping[str, Any], name: str, default: int) -> int:
    """Return a positive integer of the settings, or else the default."""
    value = about.get(name)
    return value if isinstance(value, int) and value > 0 else default


def kv_bytes_per_token(folder: Path, dtype: str) -> int:
    """Return the bytes of a KV cache for each token of the model in a folder, at least 1.

    Raises:
        ConfigError: its config.json cannot be read.
    """
    return max(1, _kv_numbers(text_settings(folder)) * (2 if dtype == "bfloat16" else 4))


class _Fit:
    """The choice of values for the `keys` that are unset; other keys keep their values."""

    def __init__(self, config: Section, keys: list[str]) -> None:
        self._config, self._unset = config, set(keys)
        self._chosen: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}

    def value(self, key: str) -> Any:
        """Return the value of a key: the chosen one, or that of the configuration."""
        if key in self._chosen:
            return self._chosen[key]
        return attrgetter(key)(self._config)

    def table(self, model: _Model | None) -> str:
        """Return a table of the chosen values with their reasons; "" if there is nothing to
        show."""
        if not self._reasons or (model is not None and model.small):
            return ""
        whose = model or "served elsewhere"
        values = {key: f"{self._chosen[key]:.12g}" for key in self._reasons}
        wide, far = max(map(len, values)), max(map(len, values.values()))
        lines = [f"defaults that fit the model ({whose}); --section.key=VALUE sets another:"]
        lines += [
            f"  {key:<{wide}}  {values[key]:>{far}}  {why}" for key, why in self._reasons.items()
        ]
        return "\n".join(lines)

    def all(self, model: _Model | None, turns: int | None) -> None:
        """Choose all values."""
        if model is None:
            self._choose("rollout.max_tokens", _REPLY_GPU, "a model of unknown size")
            self._at_least("rollout.turn_timeout_s", 60, "a reply may come as a whole")
            return
        rate = next(rate for below, rate in _LEARNING_RATES if model.size < below)
        self._choose("trainer.learning_rate", rate, "what a model of this size learns with")
        for name, section in self._config:
            if isinstance(section, Section):
                for key, (value, why) in section.fitted_to(model.size).items():
                    self._choose(f"{name}.{key}", value, why)
        if not model.small:
            turns = min(turns or _TURNS, _MOST_TURNS)
            self._lengths(model, turns)
            if not model.gpu:
                self._on_cpu(model, turns)
            self._times(model)
            if not self.value("trainer.checkpoint_every"):
                minutes = 30 if model.size < _LARGE else 60
                self._choose("trainer.checkpoint_every_minutes", minutes, _LOST)
        each = -(-self.value("engine.max_model_len") // self.value("trainer.ranks_per_row"))
        if each > self.value("trainer.max_tokens_per_microbatch"):
            self._choose("trainer.max_tokens_per_microbatch", each, "holds the longest row")

    def choose_date(self) -> None:
        """Choose the present time as the date in prompts."""
        if _DATE in self._unset:
            self._chosen[_DATE] = datetime.now().isoformat(timespec="seconds")
            log.info("the chat template writes the date: %s in this run", self._chosen[_DATE])

    def _choose(self, key: str, value: Any, why: str) -> None:
        if key in self._unset:
            self._chosen[key] = value
            self._reasons[key] = why

    def _lengths(self, model: _Model, turns: int) -> None:
        longest = min(model.context, _LONGEST)
        if "engine.max_model_len" not in self._unset:
            longest = min(longest, self.value("engine.max_model_len"))
        if "trainer.max_tokens_per_microbatch" not in self._unset:
            longest = min(longest, self.value("trainer.longest_row"))
        usual = _REPLY_GPU if model.gpu else _REPLY_CPU
        reply = min(usual, max(longest // 4, 1))
        why = "room for a reasoned reply" if model.gpu else "a reasoned reply, in bearable time"
        self._choose(
            "rollout.max_tokens", reply, why if reply == usual else "a quarter of the context"
        )
        reply = self.value("rollout.max_tokens")
        wanted = math.ceil((_PROMPT + turns * (reply + _OBSERVATION)) / 256) * 256
        why = f"a prompt and {turns} turns" if wanted <= longest else "the longest possible here"
        wanted = min(wanted, longest)
        if not self.value("engine.has_windows") and model.window and wanted > model.window:
            # Beyond a window, every token would compute all before it.
            wanted, why = model.window, "the sliding window of its attention"
        self._choose("engine.max_model_len", max(16, wanted), why)
        longest = self.value("engine.max_model_len")
        each = max(1, min(turns * reply, longest))
        self._choose("algo.max_tokens", each, f"the replies of {turns} turns")

    def _on_cpu(self, model: _Model, turns: int) -> None:
        longest = self.value("engine.max_model_len")
        kv_bytes = model.kv_numbers * (2 if self.value("engine.dtype") == "bfloat16" else 4)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        fits = max(2**31, memory / 8) / max(1, kv_bytes * longest / 2)
        slots = 2 ** int(math.log2(max(1, min(fits, _MOST_ON_CPU))))
        why = "more decode no faster on a CPU" if slots == _MOST_ON_CPU else "their KV fits"
        self._choose("engine.max_num_seqs", slots, why)
        slots = self.value("engine.max_num_seqs")
        if "engine.kv_cache_gib" in self._unset:
            needed = math.ceil(4 * kv_bytes * longest / 2**30)
            if needed > self.value("engine.kv_cache_gib"):
                self._choose("engine.kv_cache_gib", needed, "four conversations of full length")
        servers = self.value("engine.num_servers")
        self._choose("eval.max_concurrent", slots * servers, "what the engines decode at once")
        speed = _DECODED * model.threads * servers / model.size
        tokens = turns / 2 * self.value("rollout.max_tokens") / 2
        tasks = 2 ** int(math.log2(max(1.0, _EVALUATION_S * speed / tokens)))
        tasks = max(_FEWEST_TASKS, min(tasks, self.value("eval.num_tasks")))
        takes = tasks * tokens / speed / 60
        self._choose("eval.num_tasks", tasks, f"about {takes:.0f} minutes of decoding on a CPU")

    def _times(self, model: _Model) -> None:
        """Set each time limit to at least twice the time that is needed."""
        gib = model.size * 4 / 2**30
        held = f"{gib:.3g} GiB of weights"
        if not model.gpu:
            # An engine is silent the longest while it reads prompts for all of its slots.
            slots = self.value("engine.max_num_seqs")
            prompts = slots * self.value("engine.max_model_len") / 4
            silent_s = prompts * model.size / (_READ * model.threads)
            why = f"reading {slots} prompts may take {silent_s:.0f} s"
            self._at_least("rollout.turn_timeout_s", silent_s, why)
            self._at_least("engine.stall_timeout_s", 2 * silent_s, why)
            self._at_least("engine.request_timeout_s", 4 * silent_s, why)
            self._at_least("trainer.batch_timeout_s", 8 * silent_s, why)
            tokens = self.value("trainer.max_tokens_per_microbatch")
            pass_s = tokens * model.size / (_TRAINED * self.value("trainer.num_threads"))
            why = f"a pass over {tokens} tokens may take {pass_s:.0f} s"
            self._at_least("trainer.stall_timeout_s", pass_s, why)
        self._at_least("engine.start_timeout_s", gib * _LOADED_S, held)
        self._at_least("trainer.start_timeout_s", gib * _LOADED_S, held)
        self._at_least("weights.update_timeout_s", gib * _LOADED_S, held)
        self._at_least("trainer.finish_timeout_s", 5 * gib * _LOADED_S, held)

    def _at_least(self, key: str, seconds: float, why: str) -> None:
        """Choose twice as many seconds, in whole minutes, if that is more than the default."""
        if 2 * seconds > self.value(key):
            self._choose(key, 60.0 * math.ceil(2 * seconds / 60), why)
