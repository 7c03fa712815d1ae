"""Which runs have a fork server."""

import asyncio
import os

import pytest

from agentgym_rl.cluster import ForkServer
from agentgym_rl.config import load_config
from agentgym_rl.config.engine import GPU_DRIVERS, may_use_gpu
from agentgym_rl.core import ConfigError
from agentgym_rl.run import producer_kind
from agentgym_rl.run.launch import fork_server, launch
from tests.kit.cases import cases

CPU = {"engine.device": "cpu", "trainer.device": "cpu"}
WORKERS = {"rollout.workers": 2}


def imports_of(**overrides) -> set[str] | None:
    """What the fork server of such a run imports (it is not started); None: there is none."""
    config = load_config(overrides=CPU | overrides)
    server = fork_server(config.own_engine, config.trainer, producer_kind(config).forked(config))
    return set(server.modules) if isinstance(server, ForkServer) else None


def test_a_run_on_the_cpu_forks_its_engine_and_its_rank():
    modules = imports_of()
    assert modules is not None
    assert {"agentgym_rl.trainer.main", "arl_embedded.main"} <= modules


@cases(
    "overrides",
    [
        {"engine.device": "cuda"},
        {"trainer.device": "cuda"},
        {"engine": {"type": "vllm"}},
    ],
)
def test_one_process_alone_is_executed(overrides):
    assert imports_of(**overrides) is None


def test_ranks_are_forked_beside_an_engine_that_is_not():
    modules = imports_of(**{"engine.device": "cuda", "trainer.num_ranks": 2})
    assert modules is not None
    assert "arl_embedded.main" not in modules


def test_workers_are_forked_where_nothing_else_is():
    modules = imports_of(**{"engine.device": "cuda", "trainer.device": "cuda"} | WORKERS)
    assert modules is not None
    assert "arl_scale.workers.process" in modules
    assert not any("trainer" in name or "engines" in name for name in modules)


def test_what_may_use_a_gpu_is_not_forked():
    assert [may_use_gpu(device) for device in ("cuda", "cpu")] == [True, False]
    assert may_use_gpu("auto") == any(map(os.path.exists, GPU_DRIVERS))


def test_an_endpoint_cannot_be_trained_with():
    config = load_config(overrides={"engine": {"type": "openai"}, "model.path": "x"})

    def job():
        raise AssertionError("nothing may be imported for it")

    with pytest.raises(ConfigError, match="arl eval"):
        asyncio.run(launch(job, config, resume=None, progress=None))
