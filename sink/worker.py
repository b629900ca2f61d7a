"""One cycle of a slot: fetch, push, remember what to acknowledge. Runs in a worker thread.

Many workers may wait in a long poll; at most WORKING of them decode and push at once, since they share the
interpreter with the event loop (four busy threads cost a foreground PUT 4 ms at p99, one costs nothing).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from queues.batches import Session
from queues.rules import Item
from queues.wire import Ack
from repl.model.errors import IsthmusError, OutcomeUnknown
from repl.model.ports import KeyValue, TimeSource
from repl.model.requests import PushOutcome, PushResult
from sink.backoff import Result
from sink.fetch import Fetcher
from sink.lag import Lag
from sink.push import Outcomes, failed_indexes, pushes
from sink.roster import LinkName

WORKING: Final = 2
"""Workers of a node that decode or push at the same time."""

PUSH_TIMEOUT_S: Final = 120.0
"""How long a batch may take to be stored; beyond it nothing of it is acknowledged and it comes again. Above the
request time-out of the write path, which decides first."""


class Link:
    """What all slots of one (queue, peer) share: numbers and the last error."""

    def __init__(self, name: LinkName, outcomes: Outcomes) -> None:
        self.name = name
        self.outcomes = outcomes
        self.lag = Lag()
        self.lock = threading.Lock()
        self.fetches = 0
        self.batches = 0
        self.errors = 0
        self.last_error = ""
        self.last_error_ms: int | None = None
        self.last_batch_ms: int | None = None
        self.source_cluster = ""
        self.source_state = ""


class Slot:
    """One slot of a link: its own connection, its own acknowledgement."""

    def __init__(
        self, link: Link, fetcher: Fetcher, kv: KeyValue, loop: asyncio.AbstractEventLoop, time: TimeSource
    ) -> None:
        self.link = link
        self.fetcher = fetcher
        self.pushing = False
        self._kv = kv
        self._loop = loop
        self._time = time

    def cycle(self, working: threading.Semaphore, stopping: threading.Event) -> tuple[Result, int]:
        """(result, how long the source held the fetch in ms)."""
        link, time = self.link, self._time
        began_ms = time.now_ms()
        try:
            reply = self.fetcher.fetch()
        except IsthmusError as error:
            self._failed(error)
            return Result.ERROR, 0
        waited_ms = time.now_ms() - began_ms
        with link.lock:
            link.fetches += 1
            link.source_cluster = reply.cluster_name
            link.source_state = reply.state
            link.last_error = ""
        if not reply.items or stopping.is_set():
            # A batch that arrives while stopping is left unacknowledged: it comes again to whoever fetches next.
            return Result.EMPTY, waited_ms
        self.pushing = True
        try:
            with working:
                results = self._push(reply.items, reply.cluster)
            now_ms = time.wall_ms()
            failed = failed_indexes(results)
            self.fetcher.ack = Ack(reply.batch, reply.owner_version, failed)
            with link.lock:
                link.batches += 1
                link.last_batch_ms = now_ms
                link.outcomes.note(reply.items, results, now_ms)
                link.lag.note(
                    [i[7] for i, r in zip(reply.items, results, strict=True) if r.outcome is not PushOutcome.FAILED]
                    if failed
                    else [i[7] for i in reply.items],
                    now_ms,
                )
        finally:
            self.pushing = False
        if failed:
            why = results[failed[0]].error
            self._failed(why or OutcomeUnknown(f"{len(failed)} changes were not stored"))
            return Result.FAILED, waited_ms
        return Result.ITEMS, waited_ms

    def _push(self, items: Sequence[Item], source: bytes) -> Sequence[PushResult]:
        """The outcome of each item; all FAILED when the cluster gave no answer in time."""
        future = asyncio.run_coroutine_threadsafe(self._kv.push(pushes(items, source)), self._loop)
        try:
            return future.result(PUSH_TIMEOUT_S)
        except IsthmusError as error:
            return [PushResult(PushOutcome.FAILED, error)] * len(items)
        except TimeoutError:
            future.cancel()
            late = OutcomeUnknown(f"this cluster gave no answer to a push within {PUSH_TIMEOUT_S:g} s")
            return [PushResult(PushOutcome.FAILED, late)] * len(items)

    def _failed(self, error: IsthmusError) -> None:
        link = self.link
        with link.lock:
            link.errors += 1
            link.last_error = str(error)
            link.last_error_ms = self._time.wall_ms()


def slot_session(cluster_uuid: bytes, node: str, incarnation: bytes, number: int) -> Session:
    """The session under which a slot fetches; `number` is unique in the process."""
    return Session(cluster_uuid, node, incarnation, number)
