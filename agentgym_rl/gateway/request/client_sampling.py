"""The sampling parameters that clients set, often without the agent's doing: they are honoured, or
left to the session.

With `gateway.sampling` "request" (the default) a request gets the sampling that it sets, or is
refused: a turn that trains must know the distribution that its tokens were drawn from. With
"session" all parameters in `SAMPLING` are ignored, whatever their values: the tokens are drawn by
the settings of the session. Such requests are counted (`ignored_sampling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agentgym_rl.gateway.errors import ApiError, unsupported

Sampling = Literal["request", "session"]

SAMPLING = frozenset(
    {
        *("temperature", "seed", "top_p", "top_k", "min_p", "top_a", "typical_p", "typical"),
        *("tfs", "tfs_z", "top_n_sigma", "epsilon_cutoff", "eta_cutoff", "do_sample"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty"),
        *("repetition_penalty_range", "repeat_last_n", "penalty_last_n", "penalty_alpha"),
        *("encoder_repetition_penalty", "no_repeat_ngram_size", "logit_bias", "min_tokens"),
        *("mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta", "smoothing_factor"),
        *("dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        "dry_sequence_breakers",
    }
)
"""The parameters of all known servers that only change the distribution of a token."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_p", "top_a", "min_tokens", "mirostat", "mirostat_mode"), (0,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "xtc_probability", "dry_multiplier"), (0,)),
    **dict.fromkeys(("dynatemp_range", "smoothing_factor", "penalty_alpha", "priority"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "typical_p", "typical"), (1,)),
    **dict.fromkeys(("repeat_penalty", "encoder_repetition_penalty", "top_p", "n"), (1,)),
    **dict.fromkeys(("tfs", "tfs_z", "best_of", "num_beams"), (1,)),
    **dict.fromkeys(("use_beam_search", "ignore_eos", "continue_final_message", "echo"), (False,)),
    **dict.fromkeys(("background", "logprobs", "return_token_ids", "early_stopping"), (False,)),
    **dict.fromkeys(("include_stop_str_in_output", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "skip_special_tokens", "do_sample"), (True,)),
    **dict.fromkeys(("include_reasoning", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("top_k", "top_n_sigma"), (0, -1)),
    "top_logprobs": (0,),
    "suffix": ("",),
}
"""The values at which a parameter that an endpoint lacks has no effect; an empty list or object
never has one."""
_BIASES = "no engine reports what it leaves of the distribution, so the turn could not be trained"
BIASED: Mapping[str, str] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), f"{_BIASES}; allowed: 0"),
    "logit_bias": f"{_BIASES}; allowed: an empty object",
}
"""The parameters of OpenAI that change the distribution other than by restricting it to a set of
tokens, and the reason why they are refused."""
_HINT = 'set gateway.sampling = "session" to ignore it. Here '


def is_neutral(name: str, value: Any) -> bool:
    """Return whether this value of a parameter has the same effect as its absence."""
    if value is None or value in ([], {}):
        return True
    if isinstance(value, dict) and is_off(name, value):
        return True
    if name == "logit_bias" and isinstance(value, dict):
        return all(isinstance(one, int | float) and one == 0 for one in value.values())
    is_switch = isinstance(value, bool)
    neutral = _NEUTRAL.get(name, ())
    return any(value == one and isinstance(one, bool) == is_switch for one in neutral)


def is_off(name: str, value: Mapping[str, Any]) -> bool:
    """Return whether these are xAI's search parameters, with the search switched off."""
    return name == "search_parameters" and value.get("mode") == "off"


def refused(name: str, why: str) -> ApiError:
    """Return the error for a parameter that cannot be honoured; for a sampling parameter, it names
    the option with which the gateway ignores it."""
    return unsupported(name, _HINT + why if name in SAMPLING else why)


def left_to_session(
    given: Mapping[str, Any], sampling: Sampling
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the parameters without those that the session decides, and the names of the latter
    that would have had an effect."""
    if sampling == "request":
        return dict(given), frozenset()
    own = SAMPLING & given.keys()
    ignored = frozenset(name for name in own if not is_neutral(name, given[name]))
    return {name: value for name, value in given.items() if name not in own}, ignored


def body_left_to_session(body: bytes, sampling: Sampling) -> tuple[bytes, frozenset[str]]:
    """Return a JSON body without the parameters that the session decides, all others byte for byte,
    and the names of the former that would have had an effect. Other documents stay as they are."""
    if sampling == "request":
        return body, frozenset()
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        own = {name: msgspec.json.decode(fields[name]) for name in SAMPLING & fields.keys()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, frozenset()  # its reader reports the fault
    if not own:
        return body, frozenset()
    kept = {name: value for name, value in fields.items() if name not in own}
    return msgspec.json.encode(kept), left_to_session(own, sampling)[1]
