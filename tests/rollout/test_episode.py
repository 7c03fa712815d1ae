"""What an episode can come to; every failure has its own outcome and none is a reward of 0."""

import asyncio
import contextlib
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from arl_agents.react import React
from arl_envs.math.env import MathEnv
from arl_plan.clock import run_virtual

from agentgym_rl import Agent, Env, Step
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import EnvError, Outcome, SandboxError, Task, Trajectory
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import EnvSpec
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.gym.wrappers import Wrapper
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import EpisodeEnv, Player
from agentgym_rl.rollout import episode as module
from agentgym_rl.rollout.episode import Deadlines, InputLimit, InputTooLong
from agentgym_rl.runtime import ENGINE_CLOCK
from tests.kit.cases import cases


class Quiz(Env):
    """Done at the first step; `trouble` happens where it is told to."""

    def __init__(self, at: str = "", trouble: BaseException | float = 0.0) -> None:
        self.at, self.trouble = at, trouble

    async def _maybe(self, place: str) -> None:
        if self.at == place:
            if isinstance(self.trouble, BaseException):
                raise self.trouble
            await asyncio.sleep(self.trouble)

    async def reset(self, *, seed=None, options=None):
        await self._maybe("reset")
        return [{"role": "user", "content": "2+3?"}], {}

    async def step(self, action):
        await self._maybe("step")
        return Step([], 1.0, terminated=True, truncated=False, info={"metrics": {"steps": 1}})

    async def close(self):
        await self._maybe("close")


class Misbehaving(Agent):
    def __init__(self, error: BaseException | None = None, pause_s: float = 0.0) -> None:
        self.error, self.pause_s = error, pause_s

    async def run(self, env, client, *, model, task):
        await asyncio.sleep(self.pause_s)
        if self.error:
            raise self.error


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
QUIZ = Task("t", 7)
MATH = {"env": MathEnv, "task": MathEnv.task_source("train", seed=0)[0]}


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


def play(chat, *, env=Quiz, agent=None, replies=("5",), task=QUIZ, **settings):
    """Play one episode against a scripted model."""
    said = [r if isinstance(r, Say) else chat.encode(f"{r}<|im_end|>") for r in replies]
    max_model_len = settings.pop("max_model_len", 512)
    engine = ScriptedEngine(said, max_model_len=max_model_len)
    config = GatewayConfig(forced=settings.pop("forced", "grammar"))
    gateway = Gateway(engine, chat, config=config, model_name="m", max_model_len=max_model_len)

    async def main() -> Trajectory:
        async with contextlib.AsyncExitStack() as stack:
            url = await stack.enter_async_context(gateway.serve())
            clients = await stack.enter_async_context(AgentClients(url))
            spec = EnvSpec(id="quiz", entry_point="", step_timeout_s=settings.pop("step_s", 5))
            limits = Deadlines(**({"episode_s": 5, "turn_s": 5} | settings))
            player = Player(
                lambda: wrapped(env(), spec),
                lambda: agent or React(),
                gateway,
                clients,
                "m",
                limits,
            )
            return await player.play(
                task,
                episode_id="e",
                group_id="g",
                sampling=SessionSampling(max_tokens=48, temperature=1.0),
            )

    return asyncio.run(main())


def test_a_finished_episode_is_completed(chat):
    found = play(chat)
    assert (found.outcome, found.reward, found.num_turns) == (Outcome.COMPLETED, 1.0, 1)
    assert found.rows[0].num_trained == len(chat.encode("5<|im_end|>"))
    assert found.metrics["steps"] == 1
    assert found.messages[-1]["content"] == "5"


def test_an_agent_that_stops_early_is_truncated(chat):
    found = play(chat, **MATH, agent=React(max_turns=2), replies=[CALL, CALL])
    assert (found.outcome, found.num_turns, len(found.rows)) == (Outcome.TRUNCATED, 2, 1)


def test_a_conversation_that_outgrows_the_context_is_truncated(chat):
    found = play(chat, **MATH, agent=React(max_turns=50), replies=[CALL] * 50, max_model_len=100)
    assert (found.outcome, found.metrics["overflows"]) == (Outcome.TRUNCATED, 1)
    assert "context" in found.error


class Stubborn(Agent):
    """Answers something, whatever the model says."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        with contextlib.suppress(openai.BadRequestError):
            await client.chat.completions.create(model=model, messages=messages)
        await env.step({"role": "assistant", "content": "5"})


class Chatty(React):
    """Puts many words of its own before those of the environment."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        asked = [{"role": "system", "content": "Think. " * 40}, *messages]
        await client.chat.completions.create(model=model, messages=asked)


def test_a_first_prompt_without_room_for_a_reply_is_never_scored(chat):
    length = len(chat.prompt([{"role": "user", "content": "2+3?"}], None))
    wrong = []
    for agent, context, wanted in (
        (React(), length, Outcome.TOO_LONG),
        (React(), length - 5, Outcome.TOO_LONG),
        (React(), length + 1, Outcome.COMPLETED),
        (Stubborn(), length, Outcome.TOO_LONG),
        (Chatty(), length + 9, Outcome.TOO_LONG),
    ):
        found = play(chat, agent=agent, max_model_len=context)
        if found.outcome is not wanted:
            wrong.append((agent, context - length, found.outcome, found.error))
        if wanted is Outcome.TOO_LONG:
            assert "first prompt" in found.error
            assert str(context) in found.error
    assert wrong == []


@cases(
    "settings, outcome, said",
    [
        ({"agent": Misbehaving(ValueError("oops"))}, Outcome.AGENT_ERROR, "ValueError: oops"),
        ({"agent": Misbehaving(pause_s=9), "episode_s": 0.1}, Outcome.ABORTED, "more than 0.1 s"),
        ({"env": lambda: Quiz("reset", KeyError("k"))}, Outcome.ENV_ERROR, "env.reset"),
        ({"env": lambda: Quiz("step", KeyError("k"))}, Outcome.ENV_ERROR, "env.step"),
        ({"env": lambda: Quiz("step", 9.0), "step_s": 0.1}, Outcome.ENV_ERROR, "0.1 s"),
        ({"env": lambda: Quiz("step", SandboxError("gone"))}, Outcome.INFRA_ERROR, "gone"),
        ({"env": lambda: 1 / 0}, Outcome.ENV_ERROR, "making the env"),
        ({"replies": [Say([5], fail_after=0)]}, Outcome.INFRA_ERROR, "scripted failure"),
        ({"replies": [Say([5, 6], finish_reason=None)]}, Outcome.INFRA_ERROR, "finish_reason"),
        ({"replies": [Say([5], delay_s=9)], "turn_s": 0.1}, Outcome.INFRA_ERROR, "0.1"),
    ],
)
def test_failures_have_their_own_outcomes(chat, settings, outcome, said):
    found = play(chat, **settings)
    assert (found.outcome, found.reward) == (outcome, 0.0)
    assert said in found.error
    assert not found.outcome.trains


def test_a_deadline_that_passes_names_its_key_and_what_to_set(chat):
    late = {
        "rollout.turn_timeout_s=0.4": {"replies": [Say([5], delay_s=9)], "turn_s": 0.1},
        "rollout.tool_timeout_s=0.4": {"env": lambda: Quiz("step", 9.0), "step_s": 0.1},
        "rollout.tool_timeout_s=0.8": {"env": lambda: Quiz("reset", 9.0), "step_s": 0.2},
        "rollout.idle_timeout_s=0.4": {
            "agent": Misbehaving(None, 9.0),
            "episode_s": None,
            "idle_s": 0.1,
        },
        "rollout.episode_timeout_s=0.4": {"agent": Misbehaving(None, 9.0), "episode_s": 0.1},
    }
    errors = {wanted: play(chat, **settings).error for wanted, settings in late.items()}
    assert [error for wanted, error in errors.items() if f"such as --{wanted}" not in error] == []


def test_a_failing_close_does_not_change_the_record(chat):
    assert play(chat, env=lambda: Quiz("close", OSError("x"))).outcome is Outcome.COMPLETED


def test_a_failing_close_is_said_outside_of_a_player_too(caplog):
    asyncio.run(EpisodeEnv(Quiz("close", OSError("x")), QUIZ).close())
    assert "env.close of task t failed: OSError('x')" in caplog.text


class Slow(Quiz):
    """An environment that takes a while to close."""

    closed = False

    async def close(self):
        await asyncio.sleep(0.3)
        self.closed = True


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_close_has_less_time_once_the_run_ends(is_ending, monkeypatch):
    monkeypatch.setattr(module, "HURRIED_CLOSE_S", 0.01)
    env = Slow()

    async def play() -> None:
        try:
            if is_ending:
                asyncio.current_task().cancel()
            await asyncio.sleep(0)
        finally:
            await EpisodeEnv(env, QUIZ).close()

    async def main() -> None:
        (result,) = await asyncio.gather(play(), return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) == is_ending

    asyncio.run(main())
    assert env.closed != is_ending


def test_the_end_of_the_run_is_no_failure_of_the_environment():
    episode = EpisodeEnv(Quiz("step", 60.0), QUIZ)

    async def play() -> None:
        await episode.start()
        await episode.step({"role": "assistant", "content": "5"})

    async def main() -> None:
        task = asyncio.create_task(play())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert episode.failure is None


def test_a_first_prompt_may_be_as_long_as_the_limit():
    async def main() -> None:
        episode = EpisodeEnv(Quiz(), QUIZ)
        await episode.start()
        for found in (6, 7):
            episode.check_input(InputLimit(7, count=lambda *_, found=found: found))
        with pytest.raises(InputTooLong, match="has 8 tokens, more than"):
            episode.check_input(InputLimit(7, count=lambda *_: 8))

    asyncio.run(main())


def test_an_agent_that_swallows_an_engine_failure_is_still_infra(chat):
    class Stubborn(Agent):
        async def run(self, env, client, *, model, task):
            messages, _ = await env.reset()
            with contextlib.suppress(Exception):
                await client.chat.completions.create(model=model, messages=messages)
            await env.step({"role": "assistant", "content": "5"})

    found = play(chat, agent=Stubborn(), replies=[Say([5], fail_after=0)])
    assert found.outcome is Outcome.INFRA_ERROR


FORM = {"name": "sum", "schema": {"type": "object", "properties": {"sum": {"type": "integer"}}}}
JSON = {"response_format": {"type": "json_schema", "json_schema": FORM}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "say", "parameters": {"type": "object", "required": ["sum"]}},
    }
]
CALLED = {"tools": TOOLS, "tool_choice": "required"}
SAID = '<tool_call>\n{"name": "say", "arguments": %s}\n</tool_call>'


class Strict(Agent):
    """Fails at a reply that it cannot read, after a step of the environment."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        await env.step({"role": "assistant", "content": "1"})
        await client.chat.completions.create(model=model, messages=messages, **self.fields)
        raise ValueError("this reply has not my form")


UNMET = {
    "no JSON": (JSON, "five", "was no JSON of the schema"),
    "cut": (JSON, Say([5] * 60), "was no JSON of the schema"),
    "other JSON": (JSON, '{"sum": "five"}', "'five' is not of type 'integer'"),
    "no call": (CALLED, "five", "made no call"),
    "other call": (CALLED, SAID.replace("say", "tell") % '{"sum": 5}', "called 'tell'"),
    "other arguments": (CALLED, SAID % '{"total": 5}', "'sum' is a required property"),
    "broken arguments": (CALLED, SAID % '{"sum": 5', "made no call|called 'say'"),
}


class Sums(Quiz):
    """Pays for a step, and goes on."""

    async def step(self, action):
        more = [{"role": "user", "content": "And?"}]
        return Step(more, 0.5, terminated=False, truncated=False, info={})


@cases("what", UNMET)
def test_a_failure_after_a_reply_without_its_forced_form_is_the_models(chat, what):
    fields, reply, why = UNMET[what]
    found = play(chat, env=Sums, agent=Strict(**fields), replies=[reply], forced="free")
    assert (found.outcome, found.reward) == (Outcome.TRUNCATED, 0.5)
    assert found.metrics["forced_missed"] == 1
    assert re.search(why, found.error), found.error
    assert "ValueError: this reply has not my form" in found.error
    assert found.num_trained == found.num_sampled > 0


MET = {
    "JSON": (JSON, '{"sum": 5}'),
    "JSON in another order": (JSON, '{ "more": [], "sum":5.0 }'),
    "a call": (CALLED, SAID % '{"sum": 5}'),
    "nothing forced": ({}, "five"),
}


@cases("what", MET)
def test_any_other_failure_of_an_agent_is_its_own(chat, what):
    fields, reply = MET[what]
    found = play(chat, env=Sums, agent=Strict(**fields), replies=[reply], forced="free")
    assert found.outcome is Outcome.AGENT_ERROR
    assert found.metrics["forced_missed"] == 0


@pytest.mark.parametrize("calls", ["reset", "step"])
def test_misuse_of_the_env_is_the_agents_error(chat, calls):
    class Twice(Agent):
        async def run(self, env, client, *, model, task):
            await env.reset()
            if calls == "reset":
                await env.reset()
            for _ in range(2):
                await env.step({"role": "assistant", "content": "5"})

    found = play(chat, agent=Twice())
    assert found.outcome is Outcome.AGENT_ERROR
    assert calls in found.error


class Odd(Quiz):
    """Returns whatever it is told to, from reset or step."""

    def __init__(self, *, reset=None, step=None) -> None:
        super().__init__()
        self.odd_reset, self.odd_step = reset, step

    async def reset(self, *, seed=None, options=None):
        return self.odd_reset or await super().reset()

    async def step(self, action):
        return self.odd_step or await super().step(action)


@cases(
    "odd, said",
    [
        ({"reset": [{"role": "user", "content": "no info"}]}, "env.reset: got the messages alone"),
        ({"reset": ("a string", {})}, "env.reset: got the text 'a string' in place of messages"),
        ({"step": ([], 1.0, True, {})}, "env.step: got four values"),
        ({"step": ([], None, True, False, {})}, "env.step: the reward is None; expected Step("),
        ({"step": ([], float("nan"), True, False, {})}, "env.step: the reward must be finite"),
        ({"step": ([], 1.0, True, False, None)}, "env.step: info is None; expected Step("),
        ({"step": ("text", 1.0, True, False, {})}, "env.step: the observation is 'text'; expected"),
        (
            {"step": ([], 1.0, True, False, {"metrics": {"speed": "fast"}})},
            "env.step: info['metrics'] is {'speed': 'fast'}; expected Step(",
        ),
    ],
)
def test_what_an_environment_may_not_return(chat, odd, said):
    found = play(chat, env=lambda: Odd(**odd))
    assert found.outcome is Outcome.ENV_ERROR
    assert found.error.startswith(said)
    assert found.error.endswith(f"in Odd.{next(iter(odd))})")


def test_a_plain_five_tuple_and_numpy_numbers_are_fine(chat):
    step = ([], np.float32(0.5), np.bool_(True), 0, {"metrics": {"n": np.int64(3)}})
    found = play(chat, env=lambda: Odd(step=step))
    assert (found.outcome, found.reward, found.metrics["n"]) == (Outcome.COMPLETED, 0.5, 3.0)


class Spoilt(Wrapper):
    """Returns what it is told to, past all of `make`'s checks."""

    def __init__(self, step) -> None:
        super().__init__(Quiz())
        self.told = step

    async def step(self, action):
        return self.told


SPOILT = {
    "no_step": None,
    "five_tuple": ([], 1.0, True, False, {}),
    "nan": Step([], float("nan"), True, False, {}),
    "inf": Step([], float("inf"), True, False, {}),
    "text": Step([], "1", True, False, {}),  # type: ignore[arg-type]
    "nan_metric": Step([], 1.0, True, False, {"metrics": {"x": float("nan")}}),
    "text_metric": Step([], 1.0, True, False, {"metrics": {"x": "fast"}}),
}


def adding_up(env: Env, steps: int) -> EpisodeEnv:
    """An episode of so many steps."""
    episode = EpisodeEnv(env, QUIZ)

    async def play() -> None:
        await episode.start()
        for _ in range(steps):
            await episode.step({"role": "assistant", "content": "5"})

    asyncio.run(play())
    return episode


@cases("step", SPOILT.values(), ids=SPOILT)
def test_what_a_run_cannot_record_is_the_environments_failure(step):
    with pytest.raises(EnvError, match=r"env\.step"):
        adding_up(Spoilt(step), 1)


def test_rewards_that_overflow_are_the_environments_failure():
    for reward, steps, said in (
        (1e308, 1, "got 1e\\+308"),
        (-2e12, 1, "got -2000000000000"),
        (math.nan, 1, "got nan"),
        (6e11, 2, "got 600000000000.0 after 6e\\+11"),
    ):
        with pytest.raises(EnvError, match=f"within ±1e\\+12; {said}"):
            adding_up(Spoilt(Step([], reward, False, False, {})), steps)
    assert adding_up(Spoilt(Step([], 4e11, False, False, {})), 2).reward == 8e11


def test_numpy_numbers_of_wrappers_become_plain_ones():
    step = Step([], np.float32(0.5), False, False, {"metrics": {"n": np.int64(3)}})  # type: ignore
    episode = adding_up(Spoilt(step), 2)
    assert (episode.reward, episode.metrics) == (1.0, {"n": 3.0})
    assert {type(episode.reward), type(episode.metrics["n"])} == {float}


def test_an_action_that_is_no_message_is_the_agents_mistake(chat):
    class Objects(Agent):
        async def run(self, env, client, *, model, task):
            await env.step(Deadlines(1, 1))

    found = play(chat, agent=Objects())
    assert found.outcome is Outcome.AGENT_ERROR
    assert "got Deadlines (it is no mapping)" in found.error


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1)])
def test_stray_cancellation_and_exits_stay_in_the_episode(chat, error):
    assert play(chat, agent=Misbehaving(error)).outcome is Outcome.AGENT_ERROR

    class Leaky(Quiz):
        async def step(self, action):
            raise error

    assert play(chat, env=Leaky).outcome is Outcome.ENV_ERROR


def test_exits_while_making_or_closing_an_env_stay_in_the_episode(chat):
    def make():
        raise SystemExit(1)

    assert play(chat, env=make).outcome is Outcome.ENV_ERROR
    found = play(chat, env=lambda: Quiz("close", asyncio.CancelledError()))
    assert found.outcome is Outcome.COMPLETED


def test_an_agent_that_swallows_its_deadline_is_aborted(chat):
    class Deaf(Agent):
        async def run(self, env, client, *, model, task):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(9)

    assert play(chat, agent=Deaf(), episode_s=0.1).outcome is Outcome.ABORTED


def test_an_environment_cannot_rewrite_what_the_session_counts(chat):
    step = ([], 1.0, True, False, {"metrics": {"tool_calls": 99}})
    assert play(chat, env=lambda: Odd(step=step)).metrics["tool_calls"] == 0


@pytest.mark.slow
def test_neither_turn_nor_episode_is_late_while_engines_sleep(chat):
    class Sleeping(React):
        async def run(self, env, client, *, model, task):
            ENGINE_CLOCK.sleep()
            try:
                await super().run(env, client, model=model, task=task)
            finally:
                ENGINE_CLOCK.wake()

    late = Say(chat.encode("5<|im_end|>"), delay_s=2.5, chunk=99)
    limits = {"turn_s": 2, "episode_s": 2}
    assert play(chat, agent=Sleeping(), replies=[late], **limits).outcome is Outcome.COMPLETED
    assert play(chat, replies=[late], **limits).outcome is not Outcome.COMPLETED


@cases(
    "at_work, ended_s",
    [
        ("env.is_stepping", 45.0),
        ("session.in_flight", 45.0),
        ("session.progress_s", 9.0),
        ("", 5.0),
    ],
)
def test_an_episode_ends_by_idleness_alone(at_work, ended_s):
    """For 40 s a step or a reply is in progress, or one ended after 4 s; the limit is 5 s."""

    async def play() -> None:
        session: Any = SimpleNamespace(in_flight=set(), progress_s=-math.inf)
        env: Any = SimpleNamespace(is_stepping=False, progress_s=-math.inf)
        async with Deadlines(None, 1.0, idle_s=5.0).of_episode(session, env):
            if at_work == "session.progress_s":
                await asyncio.sleep(4.0)
                session.progress_s = ENGINE_CLOCK.time()
            elif at_work:
                env.is_stepping = at_work == "env.is_stepping"
                session.in_flight = {1} if at_work == "session.in_flight" else set()
                await asyncio.sleep(40.0)
                env.is_stepping, session.in_flight = False, set()
                session.progress_s = ENGINE_CLOCK.time()
            await asyncio.sleep(1e5)

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await play()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(ended_s)
