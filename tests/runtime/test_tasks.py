"""Tasks that end together: one error, which keeps nothing of the work alive."""

import asyncio
import gc
import weakref

import pytest

from agentgym_rl.runtime import together


class Large:
    """A body of some megabytes, say."""


async def _failing(kept):
    large = Large()
    kept.append(weakref.ref(large))
    await asyncio.sleep(0)
    raise KeyError(len(str(large)))


async def _in_body(kept):
    async with together() as tasks:
        tasks.create_task(asyncio.sleep(60))
        await _failing(kept)


async def _in_task(kept):
    async with together() as tasks:
        tasks.create_task(_failing(kept))
        await asyncio.sleep(60)


@pytest.mark.parametrize("work", [_in_body, _in_task])
def test_an_error_is_raised_by_itself_and_frees_what_it_was_about(work):
    """At once, not when the garbage collector looks at everything."""
    kept = []

    async def main():
        with pytest.raises(KeyError):
            await work(kept)

    gc.disable()
    try:
        asyncio.run(main())
        assert [large() for large in kept] == [None]
    finally:
        gc.enable()


def test_a_cancelled_group_ends_as_cancelled():
    async def main():
        task = asyncio.create_task(_in_task([]))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
