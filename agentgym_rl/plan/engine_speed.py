"""How fast the engines of a recorded run were, alone and while the trainer computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentgym_rl.config import VllmEngineConfig
from agentgym_rl.storage.metrics import COMPUTE_PHASES

from .arrivals import arrival_rates, arrived_turns
from .decode_steps import DecodeSteps, Floats, decode_steps, engine_rates
from .rates import EngineRates
from .recorded import RecordedRun

_VLLM_SERVER_CORES = 0.5
"""vLLM's HTTP server is a process beside the one that computes. On CPUs it used half as much
processor time as that (40 % of a core beside 83 %; docs/plan.md)."""
_LITTLE = 0.1
"""Share of a decode step, or of a turn, that may lie in a phase that it is not counted to."""


def engine_speed(recorded: RecordedRun, *, contended: bool) -> tuple[EngineRates, float]:
    """The rates of an engine that nothing else holds up, and its speed while the trainer computes,
    as a share of that; 1 unless processors are `contended`.

    Raises:
        ValueError: the run does not say enough.
    """
    engine = recorded.config.own_engine
    if isinstance(engine, VllmEngineConfig):
        cached = engine.prefix_cache != "off"
        turns = arrived_turns(
            recorded.episodes, prefix_cache=cached, num_servers=engine.num_servers
        )
        turns = turns.only(_share(turns, recorded, ("weight_sync",)) < _LITTLE)
        computing = _share(turns, recorded, COMPUTE_PHASES) * contended
        rates, speed = arrival_rates(turns, computing, prefix_cache=cached)
        return rates.model_copy(update={"server_cores": _VLLM_SERVER_CORES}), speed
    steps = decode_steps(recorded.episodes, prefix_cache=False)
    computing = _share(steps, recorded, COMPUTE_PHASES)
    publishing = _share(steps, recorded, ("weight_sync",))
    # Where processors are short, what the engine alone needs shows while the trainer waits.
    calm = publishing + computing * contended < _LITTLE
    try:
        rates = engine_rates(steps.only(calm), prefix_cache=False)
    except ValueError:  # it never waits long enough to see that
        rates = engine_rates(steps.only(publishing < _LITTLE), prefix_cache=False)
    return rates, _speed(steps.only(computing > 0.5), rates) if contended else 1.0


def _share(steps: DecodeSteps, recorded: RecordedRun, phases: Sequence[str]) -> Floats:
    """[steps] how much of each lies inside these phases of the trainer, 0 to 1."""
    found = sorted(
        (start, end)
        for intervals in recorded.phases.values()
        for name, start, end in intervals
        if name in phases
    )
    if not found:
        return np.zeros(len(steps))
    edges = np.array(found).ravel()
    lengths = np.diff(edges)
    lengths[1::2] = 0.0  # between two of them
    inside = np.concatenate(([0.0], np.cumsum(lengths)))
    starts = np.interp(steps.ends_s - steps.seconds, edges, inside)
    return (np.interp(steps.ends_s, edges, inside) - starts) / steps.seconds


def _speed(steps: DecodeSteps, rates: EngineRates) -> float:
    plain = steps.only(steps.prefills == 0)
    if not len(plain):
        return 1.0
    alone = rates.step_s + rates.step_s_per_request * plain.requests
    return min(1.0, float(alone.sum() / np.minimum(plain.seconds, 10 * alone).sum()))
