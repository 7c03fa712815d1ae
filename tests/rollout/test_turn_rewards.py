"""The turn rewards of an environment: they reach the turn that became the action, and no other."""

from agentgym_rl.core import Outcome
from agentgym_rl.gym import Agent, Env, Step
from tests.rollout.test_episode import QUIZ, Quiz, chat, play

__all__ = ["chat"]  # a fixture


class Paying(Env):
    """Pays each step a turn reward, the first ones of `pays`; ends after the last."""

    pays = (0.5, -0.25)

    async def reset(self, *, seed=None, options=None):
        self.left = list(self.pays)
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        paid = self.left.pop(0)
        again = [{"role": "user", "content": "on"}]
        return Step(again, 1.0, not self.left, False, {"turn_reward": paid})


class RequestingAgent(Agent):
    """Makes several requests before each step; `acts` makes the action of their replies."""

    def __init__(self, acts, num_requests=2):
        self.acts, self.num_requests = acts, num_requests

    async def run(self, env, client, *, model, task):
        messages, over = list((await env.reset())[0]), False
        while not over:
            replies = []
            for _ in range(self.num_requests):
                found = await client.chat.completions.create(model=model, messages=messages)
                replies.append(found.choices[0].message.content)
            said = self.acts(replies)
            action = {"role": "assistant", "content": said}
            step = await env.step(action)
            messages += [action, *step.observation]
            over = step.terminated


def test_each_turn_gets_its_own_reward_and_the_episode_none_of_it(chat):
    found = play(chat, env=Paying, replies=["a", "b"])
    assert (found.outcome, found.reward) == (Outcome.COMPLETED, 2.0)
    assert found.credit.turn_rewards == [0.5, -0.25]
    assert found.credit.turn_returns(1.0) == [0.25, -0.25]
    assert "unpaid_turn_rewards" not in found.metrics


def test_of_several_requests_the_one_that_became_the_action_is_paid(chat):
    agent = RequestingAgent(lambda replies: replies[0])
    found = play(chat, env=Paying, agent=agent, replies=["a", "b", "c", "d"])
    assert found.credit.turn_rewards == [0.5, 0.0, -0.25, 0.0]


def test_a_changed_reply_pays_the_newest_turn(chat):
    agent = RequestingAgent(" and ".join)
    found = play(chat, env=Paying, agent=agent, replies=["a", "b", "c", "d"])
    assert found.credit.turn_rewards == [0.0, 0.5, 0.0, -0.25]


def test_an_agent_without_any_request_is_counted_and_named(chat, caplog):
    agent = RequestingAgent(lambda replies: "mine", num_requests=0)
    found = play(chat, env=Paying, agent=agent)
    assert not found.credit.turn_rewards
    assert found.metrics["unpaid_turn_rewards"] == 2
    assert "turn_reward of task t is not paid: the agent has not requested any" in caplog.text


def test_a_turn_reward_that_is_no_number_is_the_environments_failure(chat):
    class Endless(Paying):
        pays = (float("nan"),)

    found = play(chat, env=Endless)
    assert found.outcome is Outcome.ENV_ERROR
    assert "env.step's turn_reward must be finite" in found.error


def test_a_quiz_pays_no_turn(chat):
    assert not play(chat, env=Quiz, task=QUIZ).credit.turn_rewards
