"""Kuhn poker: the value of the game, its rules, its players."""

import asyncio
from fractions import Fraction
from itertools import permutations, product

from arl_envs.games.kuhn import CARDS, FIRST, KuhnPoker, actions, equilibrium, payoff

from agentgym_rl import make


def worth(first, second, cards, history=()):
    """The expected chips of the first player; players give the probability of an active action."""
    chips = payoff(history, *cards)
    if chips is not None:
        return chips
    turn = len(history) % 2
    share = (first, second)[turn](cards[turn], history)
    passive, active = (worth(first, second, cards, (*history, a)) for a in actions(history))
    return share * active + (1 - share) * passive


def value(first, second):
    return sum(Fraction(worth(first, second, deal)) for deal in permutations(CARDS, 2)) / 6


def pure(choices, histories):
    """A player that always does the same in the same place."""
    table = dict(zip(product(CARDS, histories), choices, strict=True))
    return lambda card, history: table[card, history]


def test_the_equilibrium_is_worth_the_known_value_and_no_one_does_better():
    assert value(equilibrium, equilibrium) == Fraction(-1, 18)
    firsts = [pure(c, [(), ("check", "bet")]) for c in product((0, 1), repeat=6)]
    seconds = [pure(c, [("check",), ("bet",)]) for c in product((0, 1), repeat=6)]
    assert max(value(first, equilibrium) for first in firsts) == Fraction(-1, 18)
    assert min(value(equilibrium, second) for second in seconds) == Fraction(-1, 18)


async def _play(player, seed):
    env = KuhnPoker()
    await env.start(seed=seed, options={})
    while env.turn is not None:
        await env.act(env.turn, env.own_action(env.turn, player))
    assert sum(env.rewards.values()) == 0
    return env.rewards[FIRST]


def test_the_player_of_the_game_plays_the_equilibrium():
    """0.02 is three standard errors of 40,000 games, whose chips have a deviation of 1.3."""

    async def mean():
        return sum([await _play("nash", seed) for seed in range(40_000)]) / 40_000

    assert abs(asyncio.run(mean()) + 1 / 18) < 0.02


def test_nonsense_folds():
    async def paid(*replies):
        env = make("kuhn", opponent="random")
        await env.reset(seed=3)
        for reply in replies:
            step = await env.step({"role": "assistant", "content": reply})
        return step

    step = asyncio.run(paid("all in"))
    assert (step.terminated, step.reward) == (True, -1.0)
    assert "check or bet" in step.info["invalid_action"]
    assert asyncio.run(paid("call")).reward == -1


def test_a_seat_sees_its_own_card_alone():
    async def texts():
        env = KuhnPoker()
        await env.start(seed=5, options={})
        first = env.observe("first")[0]["content"]
        await env.act("first", {"role": "assistant", "content": "Bet!"})
        return env.cards, first, env.observe("second")[0]["content"]

    cards, first, second = asyncio.run(texts())
    assert first.endswith("Reply with check or bet.")
    assert f"have the {cards['first']}." in first
    assert "The other player: bet. Reply with fold or call." in second
    assert f"have the {cards['second']}." in second
