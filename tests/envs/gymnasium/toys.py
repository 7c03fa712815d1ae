"""Environments of Gymnasium's own kind, one for each space that the packaged ones do not have."""

import enum
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Mission(spaces.Space):
    """A space that is none of Gymnasium's, and does not say what it holds."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, *_: Any, **__: Any) -> str:
        return "go to the red ball"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class Toy(gymnasium.Env):
    """One step: pays 1 for the action it wants; the observation is the last action, or a sample."""

    def __init__(self, action_space: Any = None, wanted: Any = 1, observation_space: Any = None):
        self.action_space = action_space or spaces.Discrete(2)
        self.observation_space = observation_space or self.action_space
        self.wanted = wanted

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any):
        reward = float(np.array_equal(action, self.wanted))
        return self.observation_space.sample(), reward, True, False, {}


def speller(**_: Any) -> Toy:
    """Text in, text out."""
    return Toy(spaces.Text(8, min_length=1, charset="abc"), "cab")


def buttons(**_: Any) -> Toy:
    """Two wheels of three, counted from -1."""
    return Toy(spaces.MultiDiscrete([3, 3], start=[-1, -1], dtype=np.int8), [-1, 1])


def nested(**_: Any) -> Toy:
    """Everything at once as an observation."""
    inner = spaces.Tuple([spaces.Discrete(3), spaces.Text(3, charset="xy")])
    parts = {
        "grid": spaces.Box(0, 9, (2, 2), np.uint8),
        "pair": inner,
        "bits": spaces.MultiBinary(3),
    }
    return Toy(observation_space=spaces.Dict(parts))


def graphs(**_: Any) -> Toy:
    """A graph as an observation."""
    return Toy(observation_space=spaces.Graph(spaces.Discrete(4), spaces.Discrete(2)))


def pictures(**_: Any) -> Toy:
    """An image as an observation."""
    return Toy(observation_space=spaces.Box(0, 255, (64, 64, 3), np.uint8))


def steering(**_: Any) -> Toy:
    """A continuous action."""
    return Toy(spaces.Box(-1, 1, (2,)))


class Moves(enum.IntEnum):
    """The names of the actions of a grid."""

    left = 0
    right = 1


class Grid(Toy):
    """A mission and a small view of a grid, with named actions."""

    actions = Moves

    def __init__(self, **_: Any) -> None:
        view = {"mission": Mission(), "view": spaces.Box(0, 10, (7, 7, 3), np.uint8)}
        super().__init__(observation_space=spaces.Dict(view))


class Drawn(Toy):
    """A screen of characters that is too large to be read, and a drawing of it."""

    metadata: ClassVar = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None) -> None:
        screen = spaces.Box(0, 255, (21, 79), np.uint8)
        super().__init__(observation_space=spaces.Dict({"chars": screen}))
        self.render_mode = render_mode

    def render(self) -> str:
        return "a drawing"


for maker in (speller, buttons, nested, graphs, pictures, steering, Grid, Drawn):
    name = maker.__name__
    gymnasium.register(f"toys/{name.lower()}-v0", f"{__name__}:{name}", disable_env_checker=True)
