"""The section `engine` of the embedded engine."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from agentgym_rl.config.engine import Device, OwnEngineConfig
from agentgym_rl.core import Anytime, OnResume


class EmbeddedEngineConfig(OwnEngineConfig):
    """The engine that comes with the package: transformers, continuous batching."""

    type: Literal["embedded"] = "embedded"
    device: Anytime[Device] = "auto"
    """The device; `auto` takes a GPU if there is one. CUDA is experimental: one H200 has run it."""
    deterministic: bool = False
    """The switch to decode one request at a time: then samples depend only on the request, its seed
    and the weights, to the last bit, on one machine. Several times slower; no KV is reused."""
    fused: OnResume[Literal["auto", "never"]] = "auto"
    """The decoding path: `auto` uses the fused path for Qwen/Llama-style models, `never` always
    uses the model's own forward."""

    prefix_cache_gib: Anytime[float] = Field(default=1.0, gt=0)
    """The memory for KV that later requests may reuse, in GiB, besides that of the running ones.
    The least recently used KV is dropped first."""

    has_windows: ClassVar[bool] = False

    @property
    def runs_on(self) -> Device:
        return self.device

    @property
    def rounds_everything(self) -> bool:
        """Return whether it is on a GPU for sure: on a CPU only the matrices of layers are rounded
        (`weights/source.py`)."""
        return self.device == "cuda"

    @property
    def needs_salts(self) -> bool:
        """Return False: it drops what older weights computed by itself. Salts would only keep apart
        what it may share: requests sent during an update, and those that it recomputed then."""
        return False

    @property
    def repeats_whole_turns(self) -> bool:
        return self.deterministic

    @property
    def prefix_cache_bytes(self) -> int:
        """Return the memory for KV that later requests may reuse; 0: none is kept."""
        off = self.deterministic or self.prefix_cache == "off"
        return 0 if off else int(self.prefix_cache_gib * 2**30)

    @property
    def decoded_together(self) -> int:
        """Return the maximum number of requests decoded together."""
        return 1 if self.deterministic else self.max_num_seqs
