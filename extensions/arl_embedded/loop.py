"""The decode thread: commands between steps, rows in, one step, rows out."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch

from agentgym_rl.core import EngineError, SleepLevel
from agentgym_rl.core.engine import Memory

from .admission import HttpError
from .batch import Batch, Step
from .decoder import Decoder, Sleep
from .journal import Counters, Journal
from .prefixes import Prefixes
from .request import Request

T = TypeVar("T")


class Command:
    """An action, and the future for its caller."""

    def __init__(self, action: Callable[[], T], future: Future[T]) -> None:
        self._action = action
        self.future = future

    def run(self) -> None:
        """Run the action; an exception fails the caller, not the loop."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._action()
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


Notify = Callable[[Sequence[tuple[Request, int, bool]]], None]
"""A function called once a step, on the decode thread: (request, tokens so far, whether it is
over)."""

log = logging.getLogger(__name__)

_IDLE_POLL_S = 1.0


class DecodeLoop:
    """A loop that decodes the submitted requests until `stop`; if it dies, `failure` is the cause.

    `submit` and `between_steps` may be called from any thread. Only the decode thread accesses all
    other state of the engine, so nothing else needs a lock.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_num_seqs: int,
        stream_interval: int,
        weight_version: str,
        notify: Notify,
        journal: Journal | None = None,
        prefixes: Prefixes | None = None,
        outdates: bool = True,
    ) -> None:
        """Set up the loop. `prefixes`: the store of tokens that requests share; None: they share
        none. `outdates` False: new weights leave it as it is, which audits notice."""
        self.weight_version = weight_version
        self.paused = False
        """Whether arriving requests are held until `resume`."""
        self.failure: BaseException | None = None
        self.counters = Counters()
        self._batch = Batch(decoder, prefixes=prefixes, counters=self.counters)
        self._outdates = outdates
        self._sleep = Sleep(decoder)
        self._waiting: deque[Request] = deque()
        self._max_num_seqs = max_num_seqs
        self._stream_interval = stream_interval
        self._notify = notify
        self._journal = journal
        self._held: deque[Request] = deque()
        """The requests that arrived while paused: no pause affects them, `resume` admits them."""
        self._frozen = False
        self._drains: list[Future[bool]] = []
        self._recompute = False
        self._inbox: deque[Request | Command] = deque()
        self._inbox_lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the current step; requests still open fail."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.failure is None and not self._stopping

    @property
    def asleep(self) -> bool:
        """Return whether some of the engine's memory has been released."""
        return bool(self._sleep.asleep)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            EngineError: the decode thread has died or is stopping.
        """
        self._post(request)

    def between_steps(self, action: Callable[[], T]) -> Future[T]:
        """Run `action` on the decode thread between two steps."""
        future: Future[T] = Future()
        self._post(Command(action, future))
        return future

    # The methods that `between_steps` runs.

    def freeze(self, recompute: bool) -> None:
        """Decode nothing until `resume`; with `recompute`, the KV cache is then rebuilt."""
        self.paused = self._frozen = True
        self._recompute = self._recompute or recompute
        self._answer_drains(False)

    def forget(self) -> None:
        """Drop the stored tokens of earlier requests."""
        self._batch.forget()

    def cut_off(self) -> None:
        """Finish all requests early, each with its output so far."""
        self.paused = True
        requests = [*self._batch.rows, *self._waiting]
        for request in requests:
            request.finish_reason = "abort"
        self._waiting.clear()
        self._retire(requests)

    def drain(self) -> Future[bool]:
        """Decode the present requests to their end. The future is True once none is left; False if
        a `resume` or a `freeze` comes first.

        Raises:
            HttpError: the engine sleeps.
        """
        self._check_awake("let requests end")
        self.paused, self._frozen = True, False
        drained: Future[bool] = Future()
        drained.set_running_or_notify_cancel()  # no caller can cancel it from here on
        self._drains.append(drained)
        self._check_drained()
        return drained

    def sleep(self, level: SleepLevel) -> None:
        """Release memory; requests being decoded go back to the head of the queue."""
        self.freeze(False)
        self._recompute = False  # all of it is recomputed at the next admission
        self._waiting.extendleft(reversed(self._batch.clear()))
        self._sleep.fall(level)
        self.counters.asleep = 1
        self._count_rows()

    def wake(self, tags: Iterable[Memory]) -> bool:
        """Restore the memory of `tags`; return True if all is awake, and decoding continues.

        Raises:
            HttpError: the weights were dropped, and no new ones have come.
        """
        self._sleep.wake(tags)
        if not self.asleep:
            self.counters.asleep = 0
            self.resume()
        return not self.asleep

    def resume(self) -> None:
        """Continue decoding.

        Raises:
            HttpError: the engine sleeps.
        """
        self._check_awake("resume")
        self.paused = self._frozen = False
        self._waiting += self._held
        self._held.clear()
        self._answer_drains(False)

    def rename(self, weight_version: str) -> None:
        """Set another label for the present weights."""
        self.weight_version = weight_version

    def swap(self, put_in_place: Callable[[], None], weight_version: str) -> None:
        """Serve other weights from the next step on.

        Raises:
            HttpError: their memory has been released.
        """
        self._sleep.check_swap()
        start = time.monotonic()
        put_in_place()
        if self._outdates:
            self._batch.outdate()
        self._sleep.swapped()
        self.weight_version = weight_version
        self.counters.weight_updates += 1
        self.counters.swap_seconds += time.monotonic() - start

    def abort(self, request: Request) -> None:
        """Finish a request early, with its output so far; do nothing if it is over."""
        if request.finished:
            return
        request.finish_reason = "abort"
        for line in (self._waiting, self._held):
            if request in line:
                line.remove(request)
        self._retire([request])

    # The thread.

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._wake.clear()
                    self._take_inbox()
                    if self._frozen or not (self._batch.rows or self._waiting):
                        self._wake.wait(_IDLE_POLL_S)
                    else:
                        self._step()
            self._end(EngineError("the engine is shutting down"))
        except BaseException as error:
            log.exception("the decode thread died")
            self._end(error)

    def _step(self) -> None:
        if self._recompute:
            self._recompute = False
            self._batch.rebuild()
        room = self._max_num_seqs - len(self._batch.rows)
        if self._waiting and room:
            self._admit([self._waiting.popleft() for _ in range(min(room, len(self._waiting)))])
        step = self._batch.step()
        now = time.monotonic()
        self.counters.steps += 1
        self.counters.generated_tokens += len(step.tokens)
        self._record(step, now)

    def _admit(self, requests: list[Request]) -> None:
        fresh = [request for request in requests if not request.token_ids]
        self.counters.prompt_tokens += sum(len(request.prompt) for request in fresh)
        self._batch.add(requests)
        self._count_rows()

    def _record(self, step: Step, now: float) -> None:
        label, over, progress = self.weight_version, [], []
        sane = math.isfinite(sum(step.logprobs))
        rows = zip(self._batch.rows, step.tokens, step.logprobs, strict=True)
        for row, (request, token, logprob) in enumerate(rows):
            if not sane and not math.isfinite(logprob):
                request.error = f"the weights of version {label} gave logits that are not finite"
                over.append(request)
            elif request.append(token, logprob, now, label, step.support.get(row)):
                over.append(request)
            elif request.stream and self._is_shown(len(request.token_ids)):
                progress.append((request, len(request.token_ids), False))
        if over:
            self._retire(over)
        if progress:
            self._notify(progress)

    def _is_shown(self, count: int) -> bool:
        """Return whether a stream shows its token number `count`: the first, as in vLLM, for the
        waiting client; then every few, since each update costs as much as some tokens."""
        return count == 1 or count % self._stream_interval == 0

    def _retire(self, requests: Iterable[Request]) -> None:
        """Take finished requests out, write them to the journal, and notify their owners."""
        requests = list(requests)
        self._batch.remove(requests)
        self._count_rows()
        for request in requests:
            self.counters.finish(request.finish_reason or "error")
            if self._journal is not None:
                self._journal.write(request)
        self._notify([(request, len(request.token_ids), True) for request in requests])
        self._check_drained()

    def _check_drained(self) -> None:
        if not (self._batch.rows or self._waiting):
            self._answer_drains(True)

    def _answer_drains(self, drained: bool) -> None:
        for waiter in self._drains:
            waiter.set_result(drained)
        self._drains.clear()

    def _check_awake(self, what: str) -> None:
        if self.asleep:
            raise HttpError(
                f"the engine sleeps, and cannot {what}: POST /wake_up wakes it",
                status=409,
                kind="ConflictError",
            )

    def _count_rows(self) -> None:
        self.counters.running = len(self._batch.rows)
        self.counters.waiting = len(self._waiting) + len(self._held)

    def _post(self, item: Request | Command) -> None:
        with self._inbox_lock:
            if self._stopping or self.failure is not None:
                raise EngineError(f"the engine decodes no more: {self.failure or 'stopping'}")
            self._inbox.append(item)
        self._wake.set()

    def _take_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Request):
                (self._held if self.paused else self._waiting).append(item)
                self.counters.requests += 1
                self._count_rows()
            else:
                item.run()

    def _end(self, error: BaseException) -> None:
        """Fail all open requests, and refuse new ones from the same moment on."""
        with self._inbox_lock:
            self.failure = None if self._stopping else error
            self._stopping = True
            items, self._inbox = list(self._inbox), deque()
        requests = [*self._batch.rows, *self._waiting, *self._held]
        for waiter in self._drains:
            waiter.set_exception(EngineError(f"the engine decodes no more: {error}"))
        for item in items:
            if isinstance(item, Request):
                requests.append(item)
            else:
                item.future.set_exception(EngineError(f"the engine decodes no more: {error}"))
        for request in requests:
            request.error = request.error or f"{type(error).__name__}: {error}"
        self._notify([(request, len(request.token_ids), True) for request in requests])
