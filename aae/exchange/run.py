"""Drive one exchange between two clusters, and report its verdict.

Both ends are requested concurrently. Only a run that compared everything can be in sync; others end as `incomplete`,
`timed-out` or `error`, with a reason. The protocol is the generator `aae.exchange.exchange.exchange`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from isthmus.aae.exchange.cluster import Incomplete
from isthmus.aae.exchange.compare import ComparedRow, DifferenceKind, KeyDifference
from isthmus.aae.exchange.exchange import (
    SEGMENTS_AT_ONCE,
    Clocks,
    ExchangeVerdict,
    Findings,
    Leaves,
    Machine,
    Pause,
    Repair,
    Roots,
    RowPage,
    Step,
    exchange,
    nobodys,
)
from isthmus.aae.exchange.remote import TypeLacking
from isthmus.aae.exchange.wire import ClocksRequest, LeavesRequest, RootsRequest, RowsResponse
from isthmus.aae.trees.tree import Hashes
from isthmus.config.text import clause, quantity
from isthmus.repl.model.errors import IsthmusError, Retryable
from isthmus.repl.model.keys import SEGMENT_BITS
from isthmus.repl.unforeseen import unforeseen

T = TypeVar("T")

ROWS_AT_ONCE: Final = 50_000
"""A response ends with the segment in which it exceeds this number of rows, about 5 MB."""


class ExchangeEnd(Protocol):
    """One cluster of an exchange. All methods raise IsthmusError."""

    async def roots(self, request: RootsRequest) -> Hashes:
        """The hashes of all branches."""

    async def leaves(self, request: LeavesRequest) -> Hashes:
        """The leaves of the requested branches."""

    async def clocks(self, request: ClocksRequest) -> RowsResponse:
        """The rows of the first of the requested segments."""


class ExchangeActions(Protocol):
    """Action of a run besides the comparison."""

    async def repair(self, differences: Sequence[KeyDifference]) -> int:
        """Enqueue differing keys, waiting for capacity; returns how many were enqueued."""

    async def pause(self) -> None:
        """Wait between two comparisons."""


class ExchangeScope(NamedTuple):
    """Scope of a comparison.

    Trees are always compared whole; rows only if changed in [since_ms, before_ms) (0: no bound) and of `bucket`, if
    given. `key_filter(bucket, key)`: False for keys that may differ; None: none may. `segment_limit`, `start`,
    `both_ways`, `ours`: see `aae.exchange.exchange.exchange`."""

    bucket_type: bytes
    since_ms: int = 0
    before_ms: int = 0
    size_bits: int = SEGMENT_BITS
    key_filter: Callable[[bytes, bytes], bool] | None = None
    bucket: bytes | None = None
    segment_limit: int = 0
    start: int = 0
    both_ways: bool = False
    ours: Callable[[ComparedRow], bool] = nobodys


@dataclass(slots=True)
class ExchangeOutcome:
    """Verdict of a run and its reason. `retryable`: something could not be compared for now, so the run proves nothing.
    `type_missing`: the other cluster does not have the bucket type."""

    verdict: ExchangeVerdict
    reason: str = ""
    findings: Findings = field(default_factory=Findings)
    retryable: bool = False
    type_missing: bool = False
    refused: int = 0
    """Repairs of checks before that the other cluster has refused for good, or that had no effect."""


async def run(
    source: ExchangeEnd,
    sink: ExchangeEnd,
    scope: ExchangeScope,
    *,
    findings: Findings,
    actions: ExchangeActions,
    timeout_s: float | None,
    segments_at_once: int = SEGMENTS_AT_ONCE,
) -> ExchangeOutcome:
    """Compare both ends and hand over what differs. `findings` is updated meanwhile. Raises nothing but
    cancellation."""
    try:
        async with asyncio.timeout(timeout_s):
            verdict = await _drive(source, sink, scope, findings, actions, segments_at_once)
    except TimeoutError:
        return ExchangeOutcome(
            ExchangeVerdict.TIMED_OUT, f"not done after {timeout_s:g} s, at {findings.state}", findings
        )
    except Incomplete as error:
        return ExchangeOutcome(ExchangeVerdict.INCOMPLETE, str(error), findings, retryable=True)
    except Retryable as error:
        return ExchangeOutcome(ExchangeVerdict.INCOMPLETE, f"{findings.state}: {error}", findings, retryable=True)
    except TypeLacking as error:
        return ExchangeOutcome(
            ExchangeVerdict.ERROR, f"the other cluster has no such bucket type: {error}", findings, type_missing=True
        )
    except IsthmusError as error:
        return ExchangeOutcome(ExchangeVerdict.ERROR, f"{findings.state}: {error}", findings, retryable=True)
    except Exception as error:  # noqa: BLE001 -- the other bucket types are compared all the same
        bug = unforeseen.exception("fullsync.exchange_failed", error, bucket_type=scope.bucket_type)
        return ExchangeOutcome(ExchangeVerdict.ERROR, f"{findings.state}: {bug}", findings, retryable=True)
    return ExchangeOutcome(verdict, _reason(verdict, findings, scope.both_ways), findings)


def _reason(verdict: ExchangeVerdict, findings: Findings, both_ways: bool) -> str:
    match verdict:
        case ExchangeVerdict.UP_TO_DATE:
            return _ahead(findings)
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
            return f"{_unqueued(findings, both_ways)}; {_limited(findings)}"
        case ExchangeVerdict.DIFFERING:
            return _unqueued(findings, both_ways)
        case _:
            return ""


def _limited(findings: Findings) -> str:
    left = clause(findings.segments_left, "differing segment", "is", "are")
    return f"at least {left} left to the next checks (segment_limit)"


def _ahead(findings: Findings) -> str:
    """How much only the other side has, or has newer."""
    parts = [quantity(findings.ahead, "key")] * bool(findings.ahead)
    parts += [f"keys of {quantity(findings.segments_ahead, 'segment')}"] * bool(findings.segments_ahead)
    return f"all of ours is there; only there or newer there: {', '.join(parts)}"


def _unqueued(findings: Findings, both_ways: bool) -> str:
    """How many keys were not enqueued, and what would repair them."""
    left = findings.differences - (0 if both_ways else findings.ahead) - findings.queued
    there = findings.ahead
    corrupt = sum(count for (kind, _), count in findings.by_kind.items() if kind is DifferenceKind.CORRUPT)
    found = [f"{clause(left, 'key', 'differs and was', 'differ and were')} not queued"]
    if both_ways and there and left >= there:
        found.append(f"{there} are ahead on the other side, whose queue has not taken them")
    if corrupt:
        found.append(f"{corrupt} have the same clock and other content (write them again)")
    return ": ".join((found[0], ", ".join(found[1:]))) if found[1:] else found[0]


async def _drive(
    source: ExchangeEnd,
    sink: ExchangeEnd,
    scope: ExchangeScope,
    findings: Findings,
    actions: ExchangeActions,
    segments_at_once: int,
) -> ExchangeVerdict:
    machine = exchange(
        findings,
        size_bits=scope.size_bits,
        key_filter=scope.key_filter,
        partial=scope.since_ms > 0 or scope.before_ms > 0,
        bucket=scope.bucket,
        segments_at_once=segments_at_once,
        both_ways=scope.both_ways,
        ours=scope.ours,
        segment_limit=scope.segment_limit,
        start=scope.start,
    )
    step = _step(machine, None)
    while True:
        answer: object = None
        match step:
            case ExchangeVerdict():
                return step
            case Roots():
                roots = RootsRequest(scope.bucket_type)
                answer = await _both(source.roots(roots), sink.roots(roots))
            case Leaves():
                leaves = LeavesRequest(scope.bucket_type, step.branches, step.size_bits)
                answer = await _both(source.leaves(leaves), sink.leaves(leaves))
            case Clocks():
                since_ms, before_ms = (0, 0) if step.all_times else (scope.since_ms, scope.before_ms)
                clocks = ClocksRequest(
                    scope.bucket_type, step.segments, step.size_bits, since_ms, before_ms, ROWS_AT_ONCE
                )
                first, second = await _both(source.clocks(clocks), sink.clocks(clocks))
                answer = (RowPage(first.rows, first.covered), RowPage(second.rows, second.covered))
            case Pause():
                await actions.pause()
            case Repair():
                answer = await actions.repair(step.differences)
        step = await _step_in_thread(machine, answer) if isinstance(step, Clocks | Leaves) else _step(machine, answer)


def _step(machine: Machine, answer: object) -> Step | ExchangeVerdict:
    """The generator's next step, or its verdict."""
    try:
        return machine.send(answer)
    except StopIteration as end:
        verdict: ExchangeVerdict = end.value
        return verdict


async def _step_in_thread(machine: Machine, answer: object) -> Step | ExchangeVerdict:
    """A step off the event loop: comparing the rows of 16,000 segments takes a tenth of a second. A cancellation waits
    for the step's end."""
    step = asyncio.ensure_future(asyncio.to_thread(_step, machine, answer))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait((step,))
        raise


async def _both(first: Awaitable[T], second: Awaitable[T]) -> tuple[T, T]:
    """Both results; raises the error of one once both have ended."""
    one, other = await asyncio.gather(_try(first), _try(second))
    for answer in (one, other):
        if isinstance(answer, IsthmusError):
            raise answer
    assert not isinstance(one, IsthmusError)
    assert not isinstance(other, IsthmusError)
    return one, other


async def _try(answer: Awaitable[T]) -> T | IsthmusError:
    try:
        return await answer
    except IsthmusError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- the other side's answer is awaited all the same
        return unforeseen.exception("fullsync.exchange_failed", error)
