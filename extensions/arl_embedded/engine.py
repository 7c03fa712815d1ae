"""The embedded engine without HTTP: requests in flight, pausing, weight updates."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from agentgym_rl.core import SleepLevel, too_slow
from agentgym_rl.core.engine import Memory
from agentgym_rl.engines import protocol
from agentgym_rl.runtime import Constraint, GrammarCompiler, give_back_memory, in_thread
from agentgym_rl.runtime.grammars import GrammarError
from agentgym_rl.runtime.pausable_clock import AwakeTime
from agentgym_rl.weights import is_adapter, opened_version, whole_units
from agentgym_rl.weights.adapter import merged

from .admission import Admission, HttpError
from .decoder import Swap
from .journal import Journal
from .loop import DecodeLoop
from .model import LoadedModel
from .prefixes import Prefixes
from .request import Request, Sampling
from .section import EmbeddedEngineConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

_COMMAND_TIMEOUT_S = 60.0
"""The longest wait for the end of the current step."""
_STOP_TIMEOUT_S = 1.0
_COMPILE_TIMEOUT_S = 20.0
_GRAMMAR = "structured_outputs"
"""The parameter with the grammar, for errors."""


class EmbeddedEngine:
    """A handle of one event loop on the decode thread. Use inside `running()`."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        model_dir: Path,
        config: EmbeddedEngineConfig,
        seed: int,
        weight_version: str,
        journal: Journal | None = None,
    ) -> None:
        self.model, self.model_dir = model, model_dir
        self.died = asyncio.Event()
        """The event set once the decode thread has died; `loop.failure` has the cause."""
        kv, max_bytes = model.decoder.reusable, config.prefix_cache_bytes
        self._prefixes = Prefixes(kv, max_bytes=max_bytes) if kv and max_bytes else None
        self.loop = DecodeLoop(
            model.decoder,
            max_num_seqs=config.decoded_together,
            stream_interval=config.stream_interval,
            weight_version=weight_version,
            notify=self._notify,
            journal=journal,
            prefixes=self._prefixes,
            outdates=config.prefix_cache != "shared",
        )
        self._config = config
        self._tokenizer_file = model_dir / "tokenizer.json"
        self.admission = Admission(
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_ids=model.eos_ids,
            seed=seed,
            tokenizer_file=self._tokenizer_file,
        )
        self._grammars = GrammarCompiler(
            partial(self._tokenizer_file.read_text, encoding="utf-8"),
            vocab_size=model.vocab_size,
            eos_ids=model.eos_ids,
        )
        self._in_flight: dict[str, Request] = {}
        self._update: _Update | None = None
        self._served: tuple[str, int] | None = None
        """The sequence and the number of the version whose numbers are in place, if known."""
        self._awake = AwakeTime()
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the decode thread while the context is open; requests in flight at the exit fail."""
        self._event_loop = asyncio.get_running_loop()
        self.loop.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.loop.stop, _STOP_TIMEOUT_S)

    # Requests.

    async def constraint(self, params: protocol.SamplingBody) -> Constraint | None:
        """Return the constraint of a request with these parameters; it is compiled in a thread.

        Raises:
            HttpError: the grammar cannot be followed, or takes too long to compile; or the model
                folder has no tokenizer to apply it with.
        """
        asked = params.structured_outputs
        if asked is None:
            return None
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT_S):
                # A thread of its own keeps no other, and no process, from ending.
                begun = in_thread(partial(self._grammars.begin, asked.grammar), name="grammar")
                return await asyncio.wrap_future(begun)
        except TimeoutError:
            message = f"the grammar was not compiled after {_COMPILE_TIMEOUT_S:g} s"
            raise HttpError(message, param=_GRAMMAR) from None
        except GrammarError as error:
            raise HttpError(str(error), param=_GRAMMAR) from None
        except FileNotFoundError:
            message = f"a grammar needs {self._tokenizer_file.name}, which this model folder lacks"
            raise HttpError(message, param=_GRAMMAR) from None

    def submit(self, body: protocol.GenerateBody, constraint: Constraint | None = None) -> Request:
        """Take a request; `parts` follows it and `release` must end it.

        Raises:
            HttpError: a parameter is wrong, or the id is in flight already.
            EngineError: the decode thread has died.
        """
        request_id = body.request_id or uuid.uuid4().hex
        if request_id in self._in_flight:
            raise HttpError(f"request_id {request_id!r} is in flight already", param="request_id")
        return self._take(self.admission.request(body, request_id, constraint))

    def submit_known(self, tokens: list[int]) -> Request:
        """Take a request for the log-probs of `tokens`, from `Admission.echo`: it decodes them one
        after the other, and samples nothing. `parts` follows it and `release` must end it.

        Raises:
            EngineError: the decode thread has died.
        """
        return self._take(
            Request(
                id=uuid.uuid4().hex,
                prompt=tokens[:1],
                max_tokens=len(tokens) - 1,
                sampling=Sampling(1.0, 1.0, 0, 0.0, key=0),
                stop_ids={},
                forced=tokens[1:],
            )
        )

    def _take(self, request: Request) -> Request:
        self.loop.submit(request)
        self._in_flight[request.id] = request
        return request

    async def parts(self, request: Request) -> AsyncIterator[tuple[int, int]]:
        """Yield index ranges [start, end) of new tokens, as they become visible; the last one may
        be empty. Afterwards the request has a finish_reason or an error.

        Raises:
            HttpError: with status 504, after a silence of `engine.request_timeout_s` in which the
                engine decoded for no other request either (see `Patience`), asleep not counted.
        """
        timeout_s = self._config.request_timeout_s
        start = 0
        while True:
            try:
                async with self._awake.timeout(timeout_s, others=self._progress()):
                    await request.wakeup.wait()
            except TimeoutError:
                what = f"the next token of request {request.id}, with waits in queue and pauses,"
                raise HttpError(
                    too_slow(what, "engine.request_timeout_s", timeout_s),
                    status=504,
                    kind="TimeoutError",
                ) from None
            request.wakeup.clear()
            end, done = request.visible, request.done
            if end > start or done:
                yield start, end
            if done:
                return
            start = end

    def _progress(self) -> Callable[[], float]:
        """Return a function that returns the time at which it last found that the engine had
        decoded since the call before."""
        seen, progress_s = self.loop.counters.steps, -math.inf

        def heard() -> float:
            nonlocal seen, progress_s
            if (steps := self.loop.counters.steps) != seen:
                seen, progress_s = steps, self._awake.time()
            return progress_s

        return heard

    def release(self, request: Request) -> None:
        """Forget a request, and abort it if it is still being decoded."""
        self._in_flight.pop(request.id, None)
        if not request.done and self.loop.alive:
            self.loop.between_steps(partial(self.loop.abort, request))

    async def abort(self, request_ids: Sequence[str]) -> int:
        """End requests early, each with its output so far; return how many were in flight."""
        found = [self._in_flight[name] for name in request_ids if name in self._in_flight]
        for request in found:
            await self._between_steps(partial(self.loop.abort, request))
        return len(found)

    # Pausing and weights.

    # Every pause holds requests that arrive meanwhile until `resume`, in any sequence of pauses,
    # and each pause returns once its promise is kept.

    async def freeze(self, *, recompute: bool) -> None:
        """Stop between two steps; requests continue at `resume`, with their present KV cache or
        with a recomputed one."""
        await self._between_steps(partial(self.loop.freeze, recompute))

    async def forget(self) -> None:
        """Drop the stored tokens of earlier requests: later ones compute their prompts."""
        await self._between_steps(self.loop.forget)

    async def cut_off(self) -> None:
        """End every request in flight with its output so far."""
        await self._between_steps(self.loop.cut_off)

    async def drain(self) -> None:
        """Let every request in flight end.

        Raises:
            HttpError: a resume or another pause came first (status 409); or they have not ended
                within `engine.request_timeout_s` (504), and the engine has resumed.
        """
        timeout_s = self._config.request_timeout_s
        drained = await self._between_steps(self.loop.drain)
        try:
            async with self._awake.timeout(timeout_s, others=self._progress()):
                if await asyncio.wrap_future(drained):
                    return
        except TimeoutError:
            await self._between_steps(self.loop.resume)
            said = too_slow("ending what is in flight", "engine.request_timeout_s", timeout_s)
            message = f"{said}; the engine runs on"
            raise HttpError(message, status=504, kind="TimeoutError") from None
        message = "a resume or another pause came before all requests had ended"
        raise HttpError(message, status=409, kind="ConflictError")

    async def resume(self) -> None:
        """Resume decoding; raise `HttpError` (status 409) if the engine sleeps."""
        await self._between_steps(self.loop.resume)

    async def sleep(self, *, level: SleepLevel, mode: Literal["keep", "abort", "wait"]) -> None:
        """Release memory. Requests in flight wait and are recomputed (`keep`), end with their
        output so far (`abort`), or end normally first (`wait`).

        Raises:
            HttpError: see `drain`.
        """
        if mode == "abort":
            await self.cut_off()
        elif mode == "wait" and not self.loop.asleep:
            await self.drain()
        if level == 2:
            self._served = None  # the weights are dropped
        await self._between_steps(partial(self.loop.sleep, level))
        self._awake.sleep()

    async def wake_up(self, tags: Iterable[Memory]) -> bool:
        """Restore memory; return True once all of it is restored, and requests continue.

        Raises:
            HttpError: the weights were dropped, and no new ones have come (status 409).
        """
        awake = await self._between_steps(partial(self.loop.wake, tags))
        if awake:
            self._awake.wake()
        return awake

    def metrics(self) -> str:
        """Return counters and memory sizes in the Prometheus text format."""
        counters, decoder = self.loop.counters, self.model.decoder
        counters.weights_bytes = decoder.weights_bytes
        counters.cache_bytes = decoder.cache_bytes
        counters.prefix_cache_bytes = self._prefixes.num_bytes if self._prefixes else 0
        return counters.prometheus()

    async def name_version(self, weight_version: str) -> None:
        """Label the present weights `weight_version` from the next decode step on."""
        await self._between_steps(partial(self.loop.rename, weight_version))

    def start_update(self) -> None:
        """Begin a weight update; an unfinished earlier one is dropped."""
        self._update = _Update()

    async def stage(self, path: Path) -> None:
        """Read, check and prepare new weights while decoding goes on.

        Raises:
            WeightsError: the file is unreadable or does not fit; the update is over, and the
                old weights serve on.
            HttpError: no update has been started, or another one was meanwhile.
        """
        update, self._update = self._update, None
        if update is None:
            raise HttpError("no weight update is in progress; POST /start_weight_update first")
        async with asyncio.timeout(self._config.start_timeout_s):
            await asyncio.to_thread(self._read, path, update)
        if self._update is not None:
            raise HttpError(f"another weight update was started while {path} was being read")
        self._update = update

    async def finish_update(self, weight_version: str) -> None:
        """Serve the staged weights as `weight_version` from the next decode step on."""
        update, self._update = self._update, None
        if update is None or update.swap is None:
            raise HttpError(
                "no weights are staged; POST /start_weight_update, /update_weights first"
            )
        if update.base is not None and update.base != self._served:
            raise HttpError(
                "the staged weights are changes of others; stage them again", status=409
            )
        self._served = None
        # An HttpError is raised here if the weights' memory is released; that ends the update, too.
        await self._between_steps(partial(self.loop.swap, update.swap, weight_version))
        update.swap, self._served = None, update.brings
        await asyncio.to_thread(give_back_memory)
        log.info("serving policy version %s", weight_version)

    def _read(self, path: Path, update: _Update) -> None:
        """Prepare what the version in the folder `path` changes in the present weights."""
        decoder, layout = self.model.decoder, self.model.layout
        with opened_version(path) as version:
            if is_adapter(version):
                tensors = merged(version, self.model_dir)
                update.swap = decoder.stage(layout.check(tensors, source=str(path)))
                return
            same: set[str] = set()
            if self._served is not None and layout.has_names_of_folder:
                same = whole_units(version, version.unchanged_since(*self._served))
                update.base = self._served if same else None
            version.known = same
            update.swap = decoder.stage(layout.check(version, source=str(path)), same)
            update.brings = version.sequence, version.version

    async def _between_steps(self, action: Callable[[], T]) -> T:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            return await asyncio.wrap_future(self.loop.between_steps(action))

    def _notify(self, progress: Sequence[tuple[Request, int, bool]]) -> None:
        """Wake the event loop from the decode thread, once for all rows of a step."""
        loop = self._event_loop
        assert loop is not None
        if not loop.is_closed():  # a step that outlasts `stop` has no event loop to notify
            loop.call_soon_threadsafe(self._announce, progress)

    def _announce(self, progress: Sequence[tuple[Request, int, bool]]) -> None:
        for request, visible, done in progress:
            request.visible = visible
            request.done = done
            request.wakeup.set()
        if self.loop.failure is not None:
            self.died.set()


class _Update:
    """A weight update between its start and its finish."""

    swap: Swap | None = None
    base: tuple[str, int] | None = None
    """The version of which the swap has only the changes, if it needs one."""
    brings: tuple[str, int] | None = None
    """The sequence and the number of the new version, if its tensors are kept as they are."""
