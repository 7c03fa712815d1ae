"""Broadcasts to small real servers whose workers are in a real broadcast group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from arl_gloo.transport import Broadcasts
from fake_engine import STEPS, FakeEngine, engine

from agentgym_rl.config import WeightsConfig
from agentgym_rl.core import ConfigError, WeightsError, extensions
from agentgym_rl.weights import (
    Publisher,
    StoredVersion,
    own_address,
    receiver_kind,
    recognized,
    write_version,
)
from agentgym_rl.weights.publish import Published
from tests.kit.cases import cases
from tests.kit.publishing import publish_now

pytestmark = pytest.mark.slow

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5], dtype=torch.bfloat16)}


class Trainer:
    """A publisher over gloo that publishes one version after the other."""

    def __init__(self, *, meeting_s: float = 20, **options: Any):
        self.transport = Broadcasts(timeout_s=meeting_s)
        self.publisher = Publisher(
            recognize=recognized,
            transport=self.transport,
            polls_staging=True,
            **{"interrupt": "keep", "timeout_s": 120, **options},
        )
        self.version = 0

    def publish(self, **engines: FakeEngine) -> Published:
        self.version += 1
        tensors = {name: tensor + self.version for name, tensor in TENSORS.items()}
        self.publisher.prepare(self.version, tensors)
        urls = {name: engine.url for name, engine in engines.items()}
        return publish_now(self.publisher, urls, self.version)

    def reached(self, server: FakeEngine) -> bool:
        """Whether every worker of the engine has the version published last."""
        last = server.received[-server.workers :]
        return len(last) == server.workers and all(self.is_last(state) for state in last)

    def is_last(self, state: Mapping[str, torch.Tensor]) -> bool:
        return all(torch.equal(state[name], part + self.version) for name, part in TENSORS.items())


def meetings(server: FakeEngine) -> int:
    return server.paths.count("/init_weight_transfer_engine")


def test_every_worker_gets_every_version_over_one_meeting():
    trainer = Trainer()
    with engine(workers=2) as one, engine() as two:
        for _ in range(3):
            assert trainer.publish(a=one, b=two).served == ("a", "b")
            assert trainer.reached(one)
            assert trainer.reached(two)
        offsets = [server.log[1][1]["init_info"]["rank_offset"] for server in (one, two)]
        assert offsets == [1, 3]
        assert meetings(one) == meetings(two) == 1
        trainer.publisher.close()


def test_members_come_and_go():
    trainer = Trainer()
    with engine() as one, engine() as two:
        trainer.publish(a=one)
        assert trainer.publish(a=one, b=two).served == ("a", "b")
        assert trainer.publish(b=two).served == ("b",)
        assert trainer.reached(two)
        assert not trainer.reached(one)
        assert (meetings(one), meetings(two)) == (2, 2)


DEATHS = ["/get_world_size", *STEPS[:-1]]


@cases("step", DEATHS)
def test_an_engine_that_dies_at_any_step_is_left_out(step):
    trainer = Trainer()
    with engine(die=step) as dying, engine(workers=2) as living:
        done = trainer.publish(a=dying, b=living)
        assert done.served == ("b",)
        assert trainer.reached(living)
        assert step in done.failed["a"]
        assert trainer.publish(b=living).served == ("b",)
        assert trainer.reached(living)


def test_a_death_between_publications_is_found_out():
    trainer = Trainer()
    with engine() as dying, engine() as living:
        trainer.publish(a=dying, b=living)
        dying.hang_up()
        done = trainer.publish(a=dying, b=living)
        assert done.served == ("b",)
        assert trainer.reached(living)


def test_a_restarted_engine_behind_the_same_url_gets_the_next_version():
    trainer = Trainer()
    with engine() as server:
        trainer.publish(a=server)
        for group in server.groups.values():
            group.close()  # the old process is gone
        server.groups = {}
        assert trainer.publish(a=server).served == ("a",)
        assert trainer.reached(server)


def test_a_silent_member_costs_the_others_half_of_the_time():
    trainer = Trainer(meeting_s=2, timeout_s=4)
    with engine(hang="/update_weights", hang_s=10) as silent, engine() as living:
        done = trainer.publish(a=silent, b=living)
        assert done.served == ("b",)
        assert "no answer in" in done.failed["a"]


def test_damage_on_the_way_fails_that_version_alone():
    trainer = Trainer()
    with engine() as server:
        trainer.publisher.prepare(1, TENSORS)
        told = trainer.transport._update_info
        trainer.transport._update_info = lambda it: {**told(it), "fingerprint": "00000000"}
        with pytest.raises(WeightsError, match=r"worker 0: failed: .*fingerprint .* 00000000"):
            publish_now(trainer.publisher, {"a": server.url}, 1)
        trainer.transport._update_info = told
        assert trainer.publish(a=server).served == ("a",)


def test_only_what_changed_is_sent_to_the_members_that_have_the_rest(tmp_path):
    """All of it again, once the group is another one."""
    trainer = Trainer()
    first = {f"layers.{n}.a": torch.full((3,), float(n)) for n in range(3)}
    second = {**first, "layers.1.a": torch.ones(3) * 7}
    paths = [write_version(tmp_path, 1, first, sequence="s")]
    paths += [write_version(tmp_path, 2, second, sequence="s", previous=paths[0])]
    paths += [write_version(tmp_path, 3, second, sequence="s", previous=paths[1])]
    with engine() as one, engine() as two:
        for version, path in enumerate(paths, start=1):
            engines = {"a": one, "b": two} if version == 3 else {"a": one}
            trainer.publisher.prepare(version, StoredVersion(path))
            urls = {name: it.url for name, it in engines.items()}
            assert publish_now(trainer.publisher, urls, version).served == tuple(engines)
        updates = [body["update_info"] for path, body in one.log if path == "/update_weights"]
        trainer.publisher.close()
    assert [it["names"] for it in updates] == [list(first), ["layers.1.a"], list(first)]
    assert [it["base"] for it in updates] == [[], ["s", 1], []]
    assert [it["same"] for it in updates] == [[], ["layers.0.a", "layers.2.a"], []]
    assert one.received[1].keys() == {"layers.1.a"}
    assert two.received[0]["layers.1.a"].equal(torch.ones(3) * 7)


def test_nobody_to_publish_to_is_an_error_at_once():
    trainer = Trainer()
    with engine() as gone:
        pass
    why = rf"^no engine took policy version 1: a \({gone.url}\): [^;]*ConnectionRefused[^;]*$"
    with pytest.raises(WeightsError, match=why):
        trainer.publish(a=gone)


def test_engines_on_this_machine_meet_on_loopback():
    assert own_address(["http://127.0.0.1:1", "http://localhost:2"]) == "127.0.0.1"
    assert own_address(["http://[::1]:1"]) == "::1"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_without_the_package_the_transport_is_refused_by_its_name(monkeypatch, kind):
    kind, weights = receiver_kind(kind), WeightsConfig(transport="gloo")
    assert isinstance(kind.transport(weights, num_ranks=1, model_dir=None), Broadcasts)
    find = extensions.find_spec
    monkeypatch.setattr(extensions, "find_spec", lambda n: None if n == "arl_gloo" else find(n))
    extensions.forget_entry_points()
    try:
        with pytest.raises(ConfigError, match="extension arl_gloo, which is not installed"):
            kind.transport(weights, num_ranks=1, model_dir=None)
    finally:
        monkeypatch.undo()
        extensions.forget_entry_points()
