"""`pytest.raises` for coroutines, where there is no pytest."""

from collections.abc import Awaitable


async def fail(kind: type[BaseException], call: Awaitable[object]) -> None:
    """Await `call`, which must raise `kind`."""
    try:
        done = await call
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and this came back: {done!r}"[:500])
