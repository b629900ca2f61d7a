"""What was asked of a node's coordinator and what became of it, counted for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Final

import structlog

from repl.model.errors import IsthmusError, OutcomeUnknown, Retryable
from repl.proposal import Proposal
from repl.telemetry import Sample
from repl.write_limits import Warned

log = structlog.get_logger(__name__)

WARN_INTERVAL_S: Final = 10.0
"""Writes above a warning's limit are counted each and logged once in this time, of each kind."""


class Tally:
    """Items since start. `kinds`: by what was asked and, of the whole, `refused` for now and `unknown`. An item that
    was forwarded counts where it was asked, but for puts and deletes, which count where they are decided."""

    def __init__(self) -> None:
        self.kinds = dict.fromkeys(("put", "get", "delete", "push", "repeated", "refused", "unknown"), 0)
        self._refusals: Counter[str] = Counter()
        self._warned = Counter({"object-size": 0, "siblings": 0})
        self._said_s: dict[str, float] = {}

    def failed(self, error: IsthmusError) -> None:
        """Count an item that is answered by `error`."""
        if isinstance(error, Retryable):
            self.kinds["refused"] += 1
            self._refusals[error.reason] += 1
        elif isinstance(error, OutcomeUnknown):
            self.kinds["unknown"] += 1

    def answered(self, results: Iterable[object]) -> None:
        """Count the errors among the answers to a request."""
        for result in results:
            if isinstance(result, IsthmusError):
                self.failed(result)

    def proposed(self, proposal: Proposal) -> None:
        """Count what a batch of one partition came to."""
        self.kinds["put"] += proposal.put_count
        if proposal.delete_count:
            self.kinds["delete"] += proposal.delete_count
        if proposal.repeated_count:
            self.kinds["repeated"] += proposal.repeated_count
        if proposal.warned:
            self._warn(proposal.warned)

    def _warn(self, found: Sequence[Warned]) -> None:
        """Count objects that are above what is sound, and say so now and then."""
        now_s = monotonic()
        for what, key, size, limit in found:
            self._warned[what] += 1
            if now_s - self._said_s.get(what, -WARN_INTERVAL_S) >= WARN_INTERVAL_S:
                self._said_s[what] = now_s
                log.warning(
                    "write.above_warning",
                    what=what,
                    bucket_type=key.bucket_type.decode(errors="replace"),
                    bucket=repr(key.bucket),
                    key=repr(key.key),
                    found=size,
                    warning_limit=limit,
                    count=self._warned[what],
                )

    def samples(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        for kind, count in self.kinds.items():
            yield "isthmus_requests_total", {"kind": kind}, count
        for reason, count in self._refusals.items():
            yield "isthmus_refusals_total", {"reason": reason}, count
        for what, count in self._warned.items():
            yield "isthmus_writes_above_warning_total", {"what": what}, count
