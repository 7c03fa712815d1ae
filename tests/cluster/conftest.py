"""A Ray cluster of several nodes on this machine, started once for all tests."""

import os

import pytest

STORE_BYTES = 80 * 1024 * 1024


@pytest.fixture(scope="session")
def ray_cluster():
    """Two nodes of two CPUs each; this process is connected to it."""
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    from ray.cluster_utils import Cluster

    # Otherwise 15: on a busy machine nothing would ever start.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        },
    )
    cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
