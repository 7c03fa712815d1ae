"""What a run needs and what there is: every process has to find a place on one node."""

import pytest
from arl_scale.demand import Node, check, table, totals
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.cluster import Demand
from agentgym_rl.cluster.resources import demands
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError

EIGHT = [Node("head", cpus=32, gpus=8), Node("second", cpus=32, gpus=8)]


def _of(allocation, **keys):
    return load_config(None, {"cluster.allocation": allocation} | keys)


def test_gpus_are_asked_for_where_there_are_any():
    config = _of("vllm:d4t2+fsdp:d8")
    assert demands(config, gpus=True) == [
        Demand("engine", 4, cpus=1, gpus=2),
        Demand("trainer", 8, cpus=1, gpus=1),
    ]
    assert {it.gpus for it in demands(config, gpus=False)} == {0}


def test_a_server_needs_the_gpus_of_all_its_parts():
    config = _of("vllm:d2t2p2e2+fsdp:d8")
    assert demands(config, gpus=True)[0] == Demand("engine", 2, cpus=1, gpus=4)
    placed = check(demands(config, gpus=True), EIGHT)
    assert placed["head"] == ["engine-0", "engine-1"]


def test_stages_on_several_nodes_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"engine-0 \(1 CPU, 16 GPU\).* t x p is at most 8\."):
        check(demands(_of("vllm:d1t8p2+fsdp:d1"), gpus=True), EIGHT)


def test_rollout_workers_need_no_gpus():
    config = _of("vllm:d1+fsdp:d1", **{"rollout.workers": 3, "rollout.worker_cpus": 4})
    assert demands(config, gpus=True)[-1] == Demand("rollout", 3, cpus=4)


def test_a_device_that_is_named_is_asked_for_everywhere():
    config = _of("embedded:d2+fsdp:d2", **{"trainer.device": "cuda", "engine.device": "cpu"})
    assert [it.gpus for it in demands(config, gpus=False)] == [0, 1]


def test_servers_that_run_already_need_nothing():
    config = load_config(None, {"engine.type": "vllm", "engine.urls": "http://a:1"})
    assert [it.role for it in demands(config, gpus=True)] == ["trainer"]


def test_a_run_that_fits_is_placed():
    placed = check(demands(_of("vllm:d4t2+fsdp:d8"), gpus=True), EIGHT)
    assert placed == {
        "head": [f"engine-{i}" for i in range(4)],
        "second": [f"trainer-{i}" for i in range(8)],
    }


def test_too_small_a_cluster_is_refused_with_a_table():
    asked = demands(_of("vllm:d8t2+fsdp:d8"), gpus=True)
    with pytest.raises(ConfigError) as caught:
        check(asked, EIGHT)
    said = str(caught.value)
    assert "trainer-0 (1 CPU, 1 GPU) finds no place: the cluster is too small" in said
    assert said.splitlines()[-1].split() == ["missing", "0", "8"]
    assert all(len(line) <= 80 for line in table(asked, EIGHT).splitlines())


def test_the_columns_of_the_table_stand_below_each_other():
    lines = table(demands(_of("embedded:d2+fsdp:d2"), gpus=False), EIGHT).splitlines()
    assert {len(line) for line in lines} == {52}


def test_a_server_larger_than_any_node_is_refused():
    with pytest.raises(ConfigError, match="no node is so large: head has 32 CPU, 8 GPU"):
        check([Demand("engine", 1, cpus=1, gpus=16)], EIGHT)


def test_enough_in_all_is_not_enough():
    nodes = [Node("a", cpus=8, gpus=3), Node("b", cpus=8, gpus=3)]
    with pytest.raises(ConfigError, match="enough in all, but on no single node"):
        check([Demand("engine", 3, cpus=1, gpus=2)], nodes)


def test_no_nodes_at_all():
    with pytest.raises(ConfigError, match="too small"):
        check([Demand("trainer", 1, cpus=1)], [])


_COUNTS = st.integers(0, 5)


@given(
    st.lists(st.builds(Demand, st.just("role"), _COUNTS, _COUNTS, _COUNTS), max_size=3),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=3),
)
def test_a_placement_holds_what_was_asked(asked, sizes):
    nodes = [Node(f"n{i}", cpus, gpus) for i, (cpus, gpus) in enumerate(sizes)]
    try:
        placed = check(asked, nodes)
    except ConfigError:
        return
    assert sum(map(len, placed.values())) == sum(it.count for it in asked)
    assert not any(line.missing for line in totals(asked, nodes))


def test_who_takes_turns_is_asked_for_once():
    asked = demands(_of("vllm:d2|fsdp:d2", **{"trainer.num_threads": 3}), gpus=True)
    assert asked == [Demand("engine", 2, cpus=4, gpus=1, guest="trainer", guest_cpus=3)]
    assert (asked[0].share("engine"), asked[0].share("trainer")) == ((1, 0.5), (3, 0.5))
    placed = check(asked, [Node("one", cpus=8, gpus=2)])
    assert placed == {"one": ["engine-0", "trainer-0", "engine-1", "trainer-1"]}
    with pytest.raises(ConfigError, match="missing"):
        check(asked, [Node("one", cpus=8, gpus=1)])


def test_a_large_server_has_as_many_ranks_on_its_gpus():
    (asked,) = demands(_of("vllm:d1t2|fsdp:d2"), gpus=True)
    assert (asked.cpus, asked.gpus, asked.guest_cpus) == (3, 2, 2)


def test_on_cpus_turns_need_no_gpus():
    (asked,) = demands(_of("embedded:d1|fsdp:d1"), gpus=False)
    assert (asked.gpus, asked.share("engine"), asked.share("trainer")) == (0, (1, 0), (1, 0))
