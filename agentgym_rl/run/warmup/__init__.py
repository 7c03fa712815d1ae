"""A supervised warm-up before reinforcement learning (`arl train --init sft --data FILE`)."""

from .run import warmed_up

__all__ = ["warmed_up"]
