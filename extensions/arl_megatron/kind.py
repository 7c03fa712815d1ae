"""The kind of this backend."""

from __future__ import annotations

from arl_scale.trainers import TrainerKind

KIND = TrainerKind("arl_megatron.trainer:load", "dt")
