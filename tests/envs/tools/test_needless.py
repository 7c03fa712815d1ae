"""The task done is not enough: who asks needlessly or changes anything else is not paid."""

import json

from arl_envs.tools.env import NEEDLESS

from tests.kit.cases import cases

from .kit import LEVELS, call, run, say, started, tasks


def played(env, *first):
    """The last step of what `first` says, then a perfect agent."""
    return [run(env.step(message)) for message in (*first, *(env.solve() or ()))][-1]


def without_questions(env):
    return [m for m in env.solve() or () if not (m["content"] or "").endswith("?")]


@cases("level", LEVELS)
@cases("question", ["Anything else?", "Which one do you mean?", "?"])
def test_a_needless_question_costs_the_task(level, question):
    for task in tasks(level, 15):
        env = started(task)
        assert run(env.step(say(question))).observation[0]["content"] == NEEDLESS
        step = played(env)
        parts = step.info["reward_components"]
        assert (step.reward, parts.pop("questions"), set(parts.values())) == (0.0, 0.0, {1.0})


def test_a_question_before_looking_is_told_nothing():
    for task in tasks(3, 20, ambiguity=1.0):
        env = started(task)
        (reply,) = run(env.step(say(_question(env)))).observation
        assert reply["content"] == NEEDLESS
        for message in without_questions(env):
            step = run(env.step(message))
        assert (step.reward, step.info["metrics"]["questions"]) == (0.0, 1)


def _question(env):
    return next(m["content"] for m in env.solve() if not m.get("tool_calls"))


@cases("level", [3, 5])
def test_always_asking_pays_only_where_something_is_open(level):
    """After the first two calls of a perfect agent, which show what is open in many tasks."""
    for task in tasks(level, 30):
        env = started(task)
        first, second, *rest = without_questions(env)
        for message in (first, second, say("Which one do you mean?"), *rest):
            step = run(env.step(message))
        assert step.reward <= float(any(_is_text(m) for m in (env.solve() or ())[:-1]))


def _is_text(message):
    return not message.get("tool_calls")


def test_a_second_question_is_needless():
    for task in tasks(3, 10, ambiguity=1.0):
        env = started(task)
        for message in (*(env.solve() or ())[:-1], say("Are you sure?")):
            run(env.step(message))
        step = run(env.step((env.solve() or ())[-1]))
        assert (step.reward, step.info["reward_components"]["questions"]) == (0.0, 0.0)


def test_any_way_to_look_shows_what_is_open():
    """The orders of a customer are shown by name, too."""
    env = next(e for e in map(started, tasks(3, 20, ambiguity=1.0)) if "orders" in _question(e))
    order = next(m for m in env.solve() if _argument(m, "customer"))
    query = "SELECT name FROM customers WHERE id = ?"
    ((name,),) = env.database.all(query, _argument(order, "customer"))
    run(env.step(call("find_order", name=name)))
    (reply,) = run(env.step(say("Which order?"))).observation
    assert reply["content"].startswith("The one with the ")
    steps = [run(env.step(message)) for message in without_questions(env)]
    assert steps[-1].reward == 1.0


def _argument(message, name):
    calls = message.get("tool_calls") or [{"function": {"arguments": "{}"}}]
    return json.loads(calls[0]["function"]["arguments"]).get(name)


@cases("level", LEVELS[1:])
def test_a_change_that_is_undone_costs_the_task(level):
    for task in tasks(level, 15):
        env = started(task)
        asked = {_argument(m, "customer") for m in env.solve() or () if "set_phone" in str(m)}
        people = env.database.all("SELECT id, phone FROM customers")
        key, phone = next(each for each in people if each[0] not in asked)
        strays = [call("set_phone", customer=key, phone=number) for number in (11111, phone)]
        step = played(env, *strays)
        parts = step.info["reward_components"]
        assert (step.reward, parts["state"], parts["asked_for"]) == (0.0, 1.0, 0.0)


@cases("level", LEVELS)
def test_what_changes_nothing_is_not_held_against_anybody(level):
    for task in tasks(level, 15):
        env = started(task)
        key, phone = env.database.all("SELECT id, phone FROM customers")[0]
        env.set_phone(key, phone)
        assert played(env).reward == 1.0


def test_what_is_asked_for_may_be_done_twice_or_put_right():
    task = next(t for t in tasks(3, 200) if "set_phone" in str(started(t).solve()))
    env = started(task)
    done = next(m for m in env.solve() if "set_phone" in str(m))
    wrong = call("set_phone", customer=_argument(done, "customer"), phone=11111)
    assert played(env, done, wrong, done).reward == 1.0
