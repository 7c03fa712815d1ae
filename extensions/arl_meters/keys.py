"""The keys of measurements, which this extension adds to the sections `trainer` and `gateway`."""

from __future__ import annotations

from pydantic import Field

from agentgym_rl.core import OnResume, Section


class LayerKeys(Section):
    """The key of norms by layer."""

    after = "betas"

    layer_metrics: OnResume[bool] = False
    """The switch to measure the norms of gradient and update of each layer (metrics `layer/…`),
    for which the weights are in memory twice during a step."""


class PeakKeys(Section):
    """The key of the peak of devices."""

    after = "attention"

    peak_tflops: OnResume[float | None] = Field(default=None, gt=0)
    """The dense bfloat16 teraFLOP/s of one device, for throughput/mfu; unset: known for many
    GPUs."""


class CanaryKeys(Section):
    """The key of the canary."""

    after = "train_side_lineages"

    canary_fraction: float = Field(default=0.002, ge=0, le=1)
    """The share of turns checked against a rendering of the whole conversation (`canary_…`)."""
