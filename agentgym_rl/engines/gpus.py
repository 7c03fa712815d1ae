"""The choice of the GPUs that each server of an engine sees: its CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os

from agentgym_rl.config import ServerEngineConfig
from agentgym_rl.core import ConfigError


def visible_gpus(config: ServerEngineConfig, index: int) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES of server `index`: its share of `gpus`, or of the visible
    ones."""
    each = config.gpus_per_server
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if config.gpus:
        gpus = [str(gpu) for gpu in config.gpus]
    elif config.num_servers == 1 and index == 0:
        return {}
    elif visible is None:  # the number of GPUs is unknown here; the server will report a lack
        gpus = [str(n) for n in range(each * (index + 1))]
    else:
        gpus = [gpu for gpu in visible.split(",") if gpu]
        servers = max(config.num_servers, index + 1)  # one more server evaluates on schedule
        if len(gpus) < each * servers:
            raise ConfigError(
                f"{servers} servers of {each} GPUs each need "
                f"{each * servers} GPUs, CUDA_VISIBLE_DEVICES is {visible!r}"
            )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[each * index : each * (index + 1)])}
