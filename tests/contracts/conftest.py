"""Each sandbox backend for a file of tests, and one sandbox of it for the cases of a test; each
engine for a test, opened by its `play`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.contracts.engines import LIMIT, MEMBERS, Member
from tests.contracts.sandboxes import EACH, OneSandbox, Opened, opened
from tests.sglang.conftest import sglang_python, start_sglang
from tests.vllm.conftest import start_vllm, vllm_python

if TYPE_CHECKING:
    from tests.vllm.plain import PlainForward

__all__ = ["sglang_python", "start_sglang", "start_vllm", "vllm_python"]

T = TypeVar("T")


@pytest.fixture(scope="module", params=EACH)
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        yield found


@pytest.fixture
def one(world: Opened) -> Iterator[OneSandbox]:
    sandbox = world.run(world.backend.create())
    yield OneSandbox(world, sandbox)
    world.run(sandbox.close())


@pytest.fixture(scope="session")
def vllm_url(start_vllm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server of the vLLM member, which ends with the session."""
    from tests.vllm.plain import endless_model

    folder = endless_model(tmp_path_factory.mktemp("endless") / "model")
    return start_vllm(model_dir=folder, max_model_len=LIMIT, stream_interval=1).url


@pytest.fixture(scope="session")
def sglang_url(start_sglang: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server of the SGLang member, which ends with the session."""
    from tests.vllm.plain import endless_model

    folder = endless_model(tmp_path_factory.mktemp("endless") / "model")
    options = {"max_model_len": LIMIT, "stream_interval": 1, "interrupt": "keep"}
    # llguidance takes no tokenizer without an end-of-sequence token.
    flags = ("--grammar-backend", "none")
    return start_sglang(model_dir=folder, flags=flags, **options).url


@dataclass(frozen=True)
class Play:
    """An engine under test: `play(scenario)` opens it, and returns what the scenario returns."""

    member: Member
    url: str

    def __call__(self, scenario: Callable[[Any], Awaitable[T]]) -> T:
        async def play() -> T:
            async with asyncio.timeout(280), self.member.opens(self.url) as engine:
                return await scenario(engine)

        return asyncio.run(play())


_SERVED_S = 1200
"""The limit of a test of a real server, which may be the one for which the server is started."""


@pytest.fixture(
    params=[
        pytest.param(name, id=name, marks=[pytest.mark.timeout(_SERVED_S)] * member.needs_server)
        for name, member in MEMBERS.items()
    ]
)
def play(request: pytest.FixtureRequest) -> Play:
    """Each engine of the suite."""
    member = MEMBERS[request.param]
    if not member.needs_server:
        return Play(member, "")
    return Play(member, request.getfixturevalue(f"{member.name}_url"))


@pytest.fixture(scope="session")
def forward() -> PlainForward:
    """What engines that compute are compared with; `load` it first."""
    from tests.vllm.plain import PlainForward

    return PlainForward()
