"""The exchange of counters with a source, at the beginning of a link and then once a minute (R-ACTOR).

Each side sends the highest counters that it holds of the other's actors, so that a cluster that was put back to an
earlier state learns it from the others, if possible before it fetches, and before clients write for long. The source
also sends its queue's filter, so that this cluster knows which bucket types it gets from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from isthmus.queues.counters_wire import HeldCountersMessage
from isthmus.queues.filters import Filter, parse_filter
from isthmus.repl.model.errors import BadConfig, CodecError, PeerFault
from isthmus.repl.model.ports import TimeSource

log = structlog.get_logger(__name__)

INTERVAL_MS: Final = 60_000
"""Time between two exchanges of a link that works: what the source's loop of fetches has not noticed by then, such as a
replica that came to lead elsewhere, is sent again. A message has some 40 bytes for each partition of the source."""

UNANSWERED_MS: Final = 5_000
"""Time until a source that has sent nothing yet is asked again: at the beginning its queue may not be this cluster's.
Until its filter is known, full-sync asks for equality of all that it compares."""


class Counters(Protocol):
    """The counters that this node holds (`repl.runtime.held_counters`)."""

    passes: int

    def of(self, cluster_uuid: bytes) -> Mapping[bytes, int]:
        """Actor -> highest counter, of the actors of one cluster."""


class CountingLink(Protocol):
    """The link whose exchange it is (`sink.worker.Link`)."""

    cluster: bytes | None
    counters_due_ms: int
    counters_passes: int
    source_filter: Filter | None


class CounterFetcher(Protocol):
    """Sends a message to the link's source (`sink.fetch.Fetcher`)."""

    async def exchange(self, held: HeldCountersMessage) -> HeldCountersMessage:
        """The source's message. Raises PeerFault, CodecError."""


class CounterExchange:
    """Exchanges counters for all links of a node. `learn(counters, cluster)` gets those that a source holds."""

    def __init__(
        self,
        held: Counters,
        learn: Callable[[Mapping[bytes, int], str], None],
        local: tuple[bytes, str],
        time: TimeSource,
    ) -> None:
        """`local`: uuid and name of this cluster."""
        self._held = held
        self._learn = learn
        self._cluster, self._name = local
        self._time = time

    def due(self, link: CountingLink) -> bool:
        """Whether the link should exchange counters before its next fetch. Not before its cluster is known."""
        if link.cluster is None:
            return False
        return self._time.now_ms() >= link.counters_due_ms or link.counters_passes != self._held.passes

    async def run(self, link: CountingLink, fetcher: CounterFetcher) -> None:
        """Exchange once. A source that does not answer is left to the fetch that follows."""
        assert link.cluster is not None
        link.counters_due_ms = self._time.now_ms() + INTERVAL_MS
        link.counters_passes = self._held.passes
        message = HeldCountersMessage(self._cluster, self._name, self._held.of(link.cluster))
        try:
            answer = await fetcher.exchange(message)
        except (PeerFault, CodecError) as error:
            # A source of an older version, or a queue that is not this cluster's yet. One that cannot be reached fails
            # the fetch, too, which makes the exchange due again.
            log.debug("sink.counters_unanswered", error=str(error))
            if link.source_filter is None:
                link.counters_due_ms = self._time.now_ms() + UNANSWERED_MS
            return
        if answer.cluster == link.cluster:
            link.source_filter = _parsed(answer.filter)
            self._learn(answer.counters, answer.name)


def _parsed(text: str) -> Filter | None:
    """The filter; None for one that was not sent, or that a newer version wrote with rules that this one lacks."""
    try:
        return parse_filter(text) if text else None
    except BadConfig as error:
        log.info("sink.filter_unknown", error=str(error))
        return None
