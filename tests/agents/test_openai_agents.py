"""The OpenAI Agents SDK runs the loop: what of it are steps, and how it ends."""

import pytest

from agentgym_rl.core import EnvError, Outcome
from agentgym_rl.engines.scripted import Say
from agentgym_rl.gym import Env, Step
from tests.kit.cases import cases

pytestmark = pytest.mark.slow  # the SDK takes seconds to import

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Talk(Env):
    """Answers each call with its arguments; what follows is `replies`, a list of texts a step."""

    tools = (TOOL,)

    def __init__(self, replies: list[list[str]], *, fails: bool = False) -> None:
        self.actions: list[dict] = []
        self.replies, self.fails = replies, fails

    async def reset(self, *, seed=None, options=None):
        return [{"role": "system", "content": "Talk."}, {"role": "user", "content": "Hi."}], {}

    async def step(self, action):
        self.actions.append(action)
        if self.fails:
            raise EnvError("planted")
        answers = [
            {"role": "tool", "tool_call_id": each["id"], "content": each["function"]["arguments"]}
            for each in action.get("tool_calls") or []
        ]
        said = [{"role": "user", "content": text} for text in self.replies[len(self.actions) - 1]]
        over = len(self.actions) == len(self.replies)
        return Step([*answers, *said], 1.0, over, False, {})


@pytest.fixture(params=["chat", "responses"])
def play(need, scripted, request):
    need("agents.tool")
    from arl_agents.openai_agents import OpenAIAgents

    def played(env, replies, **options):
        script = options.pop("script", None)
        agent = OpenAIAgents(api=request.param, **options)
        return scripted.play(agent, replies, env=lambda: env, script=script)

    return played


def contents(played) -> list[tuple[str, str]]:
    return [(message["role"], message["content"] or "") for message in played.messages[2:]]


def is_one_row(played) -> bool:
    return len(played.rows) == 1 and played.metrics["forks"] == 0


def test_calls_of_one_message_are_one_step(play):
    env = Talk([[], []])
    reply = "Two. " + call('{"a":  1}') + call('{"a": "ö"}')
    played = play(env, [reply, "Done."])
    assert played.outcome is Outcome.COMPLETED
    assert len(env.actions) == 2
    sent = [each["function"]["arguments"] for each in env.actions[0]["tool_calls"]]
    assert sent == ['{"a":  1}', '{"a": "ö"}']  # to the byte
    assert env.actions[0]["content"] == "Two."
    assert contents(played)[1:3] == [("tool", sent[0]), ("tool", sent[1])]
    assert is_one_row(played)


def test_calls_that_cannot_be_made_are_the_environments_to_answer(play):
    env = Talk([[], [], []])
    played = play(env, [call("{}", name="g") + call("{}"), call('{"a": '), "Done."])
    names = [each["function"]["name"] for each in env.actions[0]["tool_calls"]]
    assert names == ["g", "f"]
    told = [text for role, text in contents(played) if role == "tool"]
    assert told[:2] == ["{}", "{}"]
    assert told[2].startswith('{"name": "f"')
    assert (played.outcome, played.num_turns) == (Outcome.COMPLETED, 3)
    assert is_one_row(played)


def test_what_the_environment_asks_next_is_answered(play):
    env = Talk([["And?"], ["So?"], [], []])
    played = play(env, ["One.", "", call("{}"), "Two."])
    assert contents(played) == [
        ("assistant", "One."),
        ("user", "And?"),
        ("assistant", ""),
        ("user", "So?"),
        ("assistant", ""),
        ("tool", "{}"),
        ("assistant", "Two."),
    ]
    assert is_one_row(played)


def test_what_it_says_with_the_answers_is_heard(play):
    env = Talk([["Hurry."], []])
    played = play(env, [call("{}"), "Done."])
    assert contents(played)[1:] == [("tool", "{}"), ("user", "Hurry."), ("assistant", "Done.")]
    assert is_one_row(played)


@cases("reply", [call("{}"), call("{}", name="g"), "", "Bye."])
def test_the_model_is_not_asked_after_the_end(play, reply):
    played = play(Talk([[]]), [reply, "never said"])
    assert (played.outcome, played.num_turns) == (Outcome.COMPLETED, 1)


@cases("reply", [call("{}"), "Hm."])
def test_its_turns_have_a_limit(play, reply):
    played = play(Talk([["And?"]] * 9), [reply] * 9, max_turns=3)
    assert (played.outcome, played.num_turns) == (Outcome.TRUNCATED, 3)


def test_a_step_that_fails_is_not_the_agents_failure(play):
    assert play(Talk([[]], fails=True), [call("{}")]).outcome is Outcome.ENV_ERROR


def test_a_failed_engine_is_infrastructure(play, chat):
    broken = Say(chat.encode("5"), fail_after=0)
    assert play(Talk([[]]), [], script=lambda _: broken).outcome is Outcome.INFRA_ERROR


def test_a_reply_of_nothing_that_was_cut_is_an_empty_message(play, chat):
    env = Talk([[]])
    cut = Say(chat.encode("<|im_end|>"), finish_reason="length")
    played = play(env, [], script=lambda _: cut)
    assert env.actions == [{"role": "assistant", "content": ""}]
    assert (played.outcome, played.metrics["length_turns"]) == (Outcome.COMPLETED, 1)
