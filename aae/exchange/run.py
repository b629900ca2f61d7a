"""One run of full-sync: drives the exchange between this cluster and another one, and says how it ended.

What both sides tell is asked for at the same time; what the machine wants repaired goes to `repair`, which waits for
room where there is none. A run that could not look at everything is `incomplete`, `timed-out` or `error`, with the
reason, never in sync. The machine is `aae.exchange.exchange`; when a run is due, `aae.scheduling.schedule` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from isthmus.aae.exchange.cluster import Incomplete
from isthmus.aae.exchange.compare import BehindSide as Where
from isthmus.aae.exchange.compare import DifferenceKind, KeyDifference
from isthmus.aae.exchange.exchange import (
    SEGMENTS_AT_ONCE,
    Ask,
    Clocks,
    ExchangeVerdict,
    Findings,
    Leaves,
    Machine,
    Pause,
    Repair,
    Roots,
    RowPage,
    exchange,
)
from isthmus.aae.exchange.remote import TypeLacking
from isthmus.aae.exchange.wire import ClocksAsked, LeavesAsked, RootsAsked, RowsTold
from isthmus.aae.trees.tree import Hashes
from isthmus.config.text import clause
from isthmus.repl.model.errors import IsthmusError, Retryable
from isthmus.repl.model.keys import SEGMENT_BITS

T = TypeVar("T")

ROWS_AT_ONCE: Final = 50_000
"""Rows of one answer after which it ends with the segment: about 5 MB."""


class ExchangeEnd(Protocol):
    """One cluster of an exchange. All raise IsthmusError."""

    async def roots(self, asked: RootsAsked) -> Hashes:
        """The hashes of all branches."""

    async def leaves(self, asked: LeavesAsked) -> Hashes:
        """The leaves of some."""

    async def clocks(self, asked: ClocksAsked) -> RowsTold:
        """The rows of the first segments."""


class ExchangeScope(NamedTuple):
    """What a run looks at. Trees are compared whole; rows are read of what was changed in [since_ms, before_ms) (0: no
    bound), and in `bucket` alone if it is given. `wanted(bucket, key)`: what counts, None: everything. `segment_limit`,
    `start`: see `aae.exchange.exchange`."""

    bucket_type: bytes
    since_ms: int = 0
    before_ms: int = 0
    size_bits: int = SEGMENT_BITS
    wanted: Callable[[bytes, bytes], bool] | None = None
    bucket: bytes | None = None
    segment_limit: int = 0
    start: int = 0


@dataclass(slots=True)
class ExchangeOutcome:
    """How a run ended: the verdict, and why it is not more. `unseen`: something could not be looked at that soon may
    be, so the run tells nothing of what differs. `lacking`: the other cluster has no such bucket type."""

    verdict: ExchangeVerdict
    reason: str = ""
    findings: Findings = field(default_factory=Findings)
    unseen: bool = False
    lacking: bool = False
    refused: int = 0
    """Repairs of the check before that the other cluster has refused for good since."""


async def run(
    source: ExchangeEnd,
    sink: ExchangeEnd,
    scope: ExchangeScope,
    *,
    findings: Findings,
    repair: Callable[[Sequence[KeyDifference]], Awaitable[int]],
    pause: Callable[[], Awaitable[None]],
    timeout_s: float | None,
    segments_at_once: int = SEGMENTS_AT_ONCE,
) -> ExchangeOutcome:
    """Compare, and hand over what differs; how it ended. `findings` fills while it runs. `pause` waits between two
    looks; `repair` returns how many differences it queued. Never raises but for a cancellation."""
    try:
        async with asyncio.timeout(timeout_s):
            verdict = await _driven(source, sink, scope, findings, repair, pause, segments_at_once)
    except TimeoutError:
        return ExchangeOutcome(
            ExchangeVerdict.TIMED_OUT, f"not done after {timeout_s:g} s, at {findings.state}", findings
        )
    except Incomplete as error:
        return ExchangeOutcome(ExchangeVerdict.INCOMPLETE, str(error), findings, unseen=True)
    except Retryable as error:
        return ExchangeOutcome(ExchangeVerdict.INCOMPLETE, f"{findings.state}: {error}", findings, unseen=True)
    except TypeLacking as error:
        return ExchangeOutcome(
            ExchangeVerdict.ERROR, f"the other cluster has no such bucket type: {error}", findings, lacking=True
        )
    except IsthmusError as error:
        return ExchangeOutcome(ExchangeVerdict.ERROR, f"{findings.state}: {error}", findings, unseen=True)
    return ExchangeOutcome(verdict, _why(verdict, findings), findings)


def _why(verdict: ExchangeVerdict, findings: Findings) -> str:
    match verdict:
        case ExchangeVerdict.INCOMPLETE | ExchangeVerdict.REPAIRED if findings.segments_wrong:
            wrong = clause(findings.segments_wrong, "segment", "has", "have")
            return f"{wrong} equal keys and other hashes: a tree is wrong on one side"
        case ExchangeVerdict.INCOMPLETE | ExchangeVerdict.REPAIRED if findings.segments_left:
            return _limited(findings)
        case ExchangeVerdict.INCOMPLETE | ExchangeVerdict.REPAIRED if findings.segments_unexplained:
            return (
                f"{clause(findings.segments_unexplained, 'segment', 'differs', 'differ')} by changes outside the range"
            )
        case ExchangeVerdict.DIFFERING if findings.segments_left:
            return f"{_left(findings)}; {_limited(findings)}"
        case ExchangeVerdict.DIFFERING:
            return _left(findings)
        case _:
            return ""


def _limited(findings: Findings) -> str:
    left = clause(findings.segments_left, "differing segment", "is", "are")
    return f"at least {left} left to the next checks (segment_limit)"


def _left(findings: Findings) -> str:
    """How many keys were not queued, and what would bring them."""
    left = findings.differences - findings.queued
    there = sum(count for (_, side), count in findings.by_kind.items() if side is Where.SOURCE)
    corrupt = sum(count for (kind, _), count in findings.by_kind.items() if kind is DifferenceKind.CORRUPT)
    found = [f"{clause(left, 'key', 'differs and was', 'differ and were')} not queued"]
    if there and left >= there:
        found.append(f"{there} are ahead on the other side (its full-sync sends them, or bidirectional = true)")
    if corrupt:
        found.append(f"{corrupt} have the same clock and other content (write them again)")
    return ": ".join((found[0], ", ".join(found[1:]))) if found[1:] else found[0]


async def _driven(
    source: ExchangeEnd,
    sink: ExchangeEnd,
    scope: ExchangeScope,
    findings: Findings,
    repair: Callable[[Sequence[KeyDifference]], Awaitable[int]],
    pause: Callable[[], Awaitable[None]],
    segments_at_once: int,
) -> ExchangeVerdict:
    machine = exchange(
        findings,
        size_bits=scope.size_bits,
        wanted=scope.wanted,
        partial=scope.since_ms > 0 or scope.before_ms > 0,
        bucket=scope.bucket,
        segments_at_once=segments_at_once,
        segment_limit=scope.segment_limit,
        start=scope.start,
    )
    ask = _step(machine, None)
    while True:
        answer: object = None
        match ask:
            case ExchangeVerdict():
                return ask
            case Roots():
                roots = RootsAsked(scope.bucket_type)
                answer = await _both(source.roots(roots), sink.roots(roots))
            case Leaves():
                leaves = LeavesAsked(scope.bucket_type, ask.branches, ask.size_bits)
                answer = await _both(source.leaves(leaves), sink.leaves(leaves))
            case Clocks():
                since_ms, before_ms = (0, 0) if ask.all_times else (scope.since_ms, scope.before_ms)
                clocks = ClocksAsked(scope.bucket_type, ask.segments, ask.size_bits, since_ms, before_ms, ROWS_AT_ONCE)
                first, second = await _both(source.clocks(clocks), sink.clocks(clocks))
                answer = (RowPage(first.rows, first.covered), RowPage(second.rows, second.covered))
            case Pause():
                await pause()
            case Repair():
                answer = await repair(ask.differences)
        ask = await _beside(machine, answer) if isinstance(ask, Clocks | Leaves) else _step(machine, answer)


def _step(machine: Machine, answer: object) -> Ask | ExchangeVerdict:
    """What the machine wants next, or how it ended."""
    try:
        return machine.send(answer)
    except StopIteration as end:
        verdict: ExchangeVerdict = end.value
        return verdict


async def _beside(machine: Machine, answer: object) -> Ask | ExchangeVerdict:
    """A step beside the event loop: to compare the rows of 16,000 segments takes a tenth of a second. Whoever ends the
    run waits for its step."""
    step = asyncio.ensure_future(asyncio.to_thread(_step, machine, answer))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait((step,))
        raise


async def _both(first: Awaitable[T], second: Awaitable[T]) -> tuple[T, T]:
    """Both answers; the error of one, once both have ended."""
    one, other = await asyncio.gather(_tried(first), _tried(second))
    for answer in (one, other):
        if isinstance(answer, IsthmusError):
            raise answer
    assert not isinstance(one, IsthmusError)
    assert not isinstance(other, IsthmusError)
    return one, other


async def _tried(answer: Awaitable[T]) -> T | IsthmusError:
    try:
        return await answer
    except IsthmusError as error:
        return error
