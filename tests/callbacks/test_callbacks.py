"""Callbacks: what is called, with what, and how one of them ends the run."""

import asyncio
from types import SimpleNamespace

import pytest
from arl_callbacks.callbacks import CallbackFailed, Callbacks

from agentgym_rl import Config, ConfigError, StopTraining, runs, train
from agentgym_rl.run import CALLBACKS
from tests.kit.cases import cases

SMALL = {
    "steps": 3,
    "rollout.groups_per_batch": 2,
    "rollout.group_size": 2,
    "trainer.num_minibatches": 1,
    "eval.num_tasks": 4,
    "logging.plot": False,
    "logging.progress": "none",
}


class Seen:
    """A callback with all three methods, one of them async."""

    def __init__(self, last: int = 99) -> None:
        self.steps, self.episodes, self.evaluations, self.last = [], [], {}, last

    def on_step(self, step, metrics):
        self.steps.append((step, metrics["reward/mean"]))
        return StopTraining("enough") if step == self.last else None

    async def on_episode(self, episode):
        await asyncio.sleep(0)
        self.episodes.append(episode)

    def on_evaluation(self, version, result):
        self.evaluations[version] = result.reward


BY_KEY = Seen()


@pytest.mark.slow
def test_callbacks_see_each_event_and_one_that_stops_leaves_a_run_to_resume(warm, tmp_path):
    seen, run = Seen(last=0), tmp_path / "run"
    stopped = asyncio.run(train(overrides=SMALL | {"run": str(run)}, callbacks=seen))
    assert (stopped.steps, stopped.state) == (1, "stopped")
    assert [step for step, _ in seen.steps] == [0]
    assert len(seen.episodes) == sum(stopped.outcomes.values()) >= 4
    assert seen.evaluations == {0: stopped.eval_before}
    assert (run / "checkpoints/step-1").exists()
    assert not (run / "export").exists()
    (listed,) = runs.find(run)
    assert listed.state == "stopped"
    key = {"logging.callbacks": [f"{__name__}:BY_KEY"]}
    ended = asyncio.run(train(overrides=key, resume=run))
    assert (ended.steps, ended.state, ended.resumed_from) == (3, "finished", 1)
    assert [step for step, _ in BY_KEY.steps] == [1, 2]
    assert BY_KEY.evaluations == {3: ended.eval_after}


@pytest.mark.slow
def test_an_error_of_a_callback_ends_the_run_and_is_its_message(warm, tmp_path):
    def on_step(step, metrics):
        return metrics["no such metric"]

    own = {"run": str(tmp_path / "run"), "eval.num_tasks": 0}
    with pytest.raises(CallbackFailed) as raised:
        asyncio.run(train(overrides=SMALL | own, callbacks=[on_step]))
    said = "callbacks[0], on_step raised KeyError: 'no such metric'; metrics has reward/mean, "
    assert str(raised.value).startswith(said)
    assert "test_callbacks.py" in str(raised.value)


def part(*callbacks, **overrides) -> Callbacks:
    CALLBACKS.set(callbacks)
    controller = SimpleNamespace(stops=False)
    progress = SimpleNamespace(phase=lambda text: None)
    config = Config(logging=overrides)
    return Callbacks(SimpleNamespace(config=config, controller=controller, progress=progress))


class Misspelt:
    on_time = True

    def on_step(self, step, metrics): ...

    def on_epsiode(self, episode): ...


def raises(step, metrics):
    raise StopTraining("now")


@cases("callback", [{"on_step": raises}, {"on_step": lambda step, metrics: StopTraining}])
def test_a_callback_that_stops_returns_or_raises_it(callback):
    made = part(callback)
    asyncio.run(made.stepped(0, {}))
    assert made.run.controller.stops


@cases(
    "callback, said",
    [
        (3, r"callbacks\[0\] is 3; expected an object with methods on_step, on_episode"),
        (raises, "a function with one of these names"),
        (Misspelt(), r"on_epsiode is no event, did you mean on_episode\? expected an object"),
        ({"on_stop": raises}, "or {'on_step': function}"),
        ({"on_episode": raises}, r"takes \(step, metrics\); expected a function of \(episode\)"),
        ({"on_step": 3}, r"callbacks\[0\], on_step is 3; expected a function of"),
    ],
)
def test_what_cannot_be_called_is_refused_before_the_run_begins(callback, said):
    with pytest.raises(ConfigError, match=said):
        part(callback)


def test_a_class_by_key_is_made_and_a_text_that_names_nothing_is_refused():
    made = part(callbacks=[f"{__name__}:Seen"])
    asyncio.run(made.evaluated(3, SimpleNamespace(reward=0.5)))
    with pytest.raises(ConfigError, match=r"logging\.callbacks: expected objects as module:object"):
        part(callbacks=["seen"])
