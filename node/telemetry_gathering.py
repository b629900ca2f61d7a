"""What each node measured of its replication, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. What is
measured is `repl.measures`' and `repl.entry_times`'; what is made of it, `node.telemetry_view`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgpack

from node.gathering import TIMEOUT_MS
from node.telemetry_view import KindFacts, NodeFacts, TypeFacts
from repl.entry_times import KindTimes
from repl.measures import PARTS, ReplogSizes, replog_sizes
from repl.model.errors import CodecError, IsthmusError
from repl.runtime import Runtime

METHOD: Final = "telemetry"

ROWS_MAX: Final = 65_536
"""Rows of one answer: bucket types times kinds of entries and reasons, which are tens. More are not believed."""

NUMBER_MAX: Final = 1 << 63


class TelemetryGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self, *, node: str, request: Callable[[str, str, bytes, int], Awaitable[bytes]], runtime: Runtime
    ) -> None:
        self._node = node
        self._request = request
        self._runtime = runtime

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer}

    def own(self) -> NodeFacts:
        """What this node measured."""
        runtime = self._runtime
        now_ms, times = runtime.time.now_ms(), runtime.entry_times
        found: dict[str, TypeFacts] = {}

        def of(bucket_type: bytes) -> TypeFacts:
            return found.setdefault(bucket_type.decode(), TypeFacts())

        for (bucket_type, part), sizes in replog_sizes(runtime.partitions.values(), runtime.replog).items():
            of(bucket_type).replogs[part] = sizes
        for (bucket_type, kind), each in times.replicated_times(now_ms).items():
            of(bucket_type).replicate[kind] = _kind_facts(each)
        for (bucket_type, kind), each in times.applied_times(now_ms).items():
            of(bucket_type).apply[kind] = _kind_facts(each)
        for (bucket_type, kind, reason), count in times.failures().items():
            of(bucket_type).failures[kind, reason] = count
        for (bucket_type, kind, reason), recent in times.recent_failures(now_ms).items():
            of(bucket_type).recent_failures[kind, reason] = recent.things, recent.span_ms
        return found

    async def answer(self, _node: str, _body: bytes) -> bytes:
        """This node's numbers, for another one that gathers."""
        return packed(self.own())

    async def gather(self, nodes: Iterable[str]) -> dict[str, NodeFacts | None]:
        """What each of `nodes` says; None for who did not answer."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ask(self, node: str) -> NodeFacts | None:
        if node == self._node:
            return self.own()
        try:
            return unpacked(await self._request(node, METHOD, b"", TIMEOUT_MS))
        except IsthmusError:
            return None


def _kind_facts(times: KindTimes) -> KindFacts:
    recent = times.recent
    return KindFacts(times.entries, recent.things, recent.total_ms, recent.max_ms, recent.span_ms)


def packed(facts: NodeFacts) -> bytes:
    """For the wire: rows of (bucket type, what, kind or part, reason or "", numbers...)."""
    rows: list[tuple[Any, ...]] = []
    for bucket_type, of in facts.items():
        rows += [(bucket_type, "replogs", part, "", *sizes) for part, sizes in of.replogs.items()]
        rows += [(bucket_type, "replicate", kind, "", *times) for kind, times in of.replicate.items()]
        rows += [(bucket_type, "apply", kind, "", *times) for kind, times in of.apply.items()]
        rows += [(bucket_type, "failures", kind, reason, count) for (kind, reason), count in of.failures.items()]
        rows += [(bucket_type, "recent-failures", *key, *recent) for key, recent in of.recent_failures.items()]
    body: bytes = msgpack.packb(rows)
    return body


def unpacked(body: bytes) -> NodeFacts:
    """What `packed` packed. Rows of a kind that is not known here, of another version, are left out. Raises
    CodecError."""
    try:
        rows = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{METHOD}: not msgpack ({error})") from error
    if not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise CodecError(f"{METHOD}: no list of rows")
    found: dict[str, TypeFacts] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) < 4 or not all(isinstance(text, str) for text in row[:4]):
            raise CodecError(f"{METHOD}: {row!r:.80} is no row")
        bucket_type, what, kind, reason, *numbers = row
        if not all(type(number) is int and 0 <= number < NUMBER_MAX for number in numbers):
            raise CodecError(f"{METHOD}: {row!r:.80} has what is no whole number from 0")
        of = found.setdefault(bucket_type, TypeFacts())
        try:
            if what == "replogs" and kind in PARTS:
                of.replogs[kind] = ReplogSizes._make(numbers)
            elif what in ("replicate", "apply"):
                (of.replicate if what == "replicate" else of.apply)[kind] = KindFacts._make(numbers)
            elif what == "failures":
                (of.failures[kind, reason],) = numbers
            elif what == "recent-failures":
                recent, span_ms = numbers
                of.recent_failures[kind, reason] = recent, span_ms
        except (TypeError, ValueError) as error:
            raise CodecError(f"{METHOD}: {row!r:.80} has too many or too few numbers") from error
    return found
