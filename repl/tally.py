"""What was asked of a node's coordinator and what became of it, counted for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from repl.model.errors import IsthmusError, OutcomeUnknown, Retryable
from repl.telemetry import Sample


class Tally:
    """Items since start. `kinds`: by what was asked and, of the whole, `refused` for now and `unknown`. An item that
    was forwarded counts where it was asked, but for puts and deletes, which count where they are decided."""

    def __init__(self) -> None:
        self.kinds = dict.fromkeys(("put", "get", "delete", "push", "repeated", "refused", "unknown"), 0)
        self._refusals: Counter[str] = Counter()

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

    def samples(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        for kind, count in self.kinds.items():
            yield "isthmus_requests_total", {"kind": kind}, count
        for reason, count in self._refusals.items():
            yield "isthmus_refusals_total", {"reason": reason}, count
