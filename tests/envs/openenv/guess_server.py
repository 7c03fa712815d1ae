"""A toy environment behind a real OpenEnv server: `python guess_server.py PORT`.

Runs in any Python that has openenv; guesses a number, or echoes with --echo.
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: int


class Echo(Action):
    message: str


class Shown(Observation):
    text: str


class GuessEnv(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.secret = 0

    def reset(self, seed=None, episode_id=None, low=1):
        self.secret = random.Random(seed).randint(low, 9)
        return Shown(text=f"A number from {low} to 9.")

    def step(self, action, timeout_s=None):
        if action.number == 666:
            raise RuntimeError("boom")
        if action.number == self.secret:
            return Shown(text="yes", reward=1.0, done=True, metadata={"secret": self.secret})
        return Shown(text="higher" if action.number < self.secret else "lower", reward=-0.1)

    @property
    def state(self):
        return State()


class EchoEnv(GuessEnv):
    def step(self, action, timeout_s=None):
        return Shown(text=action.message, reward=float(len(action.message)), done=True)


if __name__ == "__main__":
    env, action = (EchoEnv, Echo) if "--echo" in sys.argv else (GuessEnv, Guess)
    app = create_fastapi_app(env, action, Shown, max_concurrent_envs=2)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
